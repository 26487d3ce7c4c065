#include "lockstep/comm/group/world.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/group/connect.h"
#include "lockstep/comm/group/derived.h"
#include "lockstep/comm/group/objects.h"
#include "lockstep/comm/group/rank_zero.h"
#include "lockstep/comm/group/seed.h"
#include "lockstep/comm/rendezvous/handlers.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace world_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// What `run` writes to standard output.
std::string standard_output_of(const std::function<void()>& run) {
  const TemporaryDirectory folder;
  const std::string path = folder / "output";
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  REQUIRE(std::freopen(path.c_str(), "w", stdout) != nullptr);
  run();
  std::fflush(stdout);
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::ptrdiff_t entries_of(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

}  // namespace

// feature: A-16
TEST_CASE("a world is the group of all ranks") {
  run_worlds_or_throw(3, [](const World& world) {
    const at::Tensor value = at::full({2}, world.rank() + 1.0);
    world.all_reduce(value);
    CHECK(value.equal(at::full({2}, 6.0)));
    CHECK(world.all_gather(at::full({1}, world.rank())).at(2).item<int>() == 2);
    const at::Tensor root = at::full({1}, world.rank());
    world.broadcast(root, 1);
    CHECK(root.item<int>() == 1);
    double loss = 1.5;
    int count = 2;
    world.all_reduce(loss, count);
    CHECK(loss == 4.5);
    CHECK(count == 6);
    CHECK(world.all_gather_object(world.rank()) == std::vector<int>{0, 1, 2});
    CHECK(world.all_gather_v(at::zeros({world.rank()})).at(2).size(0) == 2);
    CHECK(&world.group() == static_cast<const ProcessGroup*>(&world));
    CHECK(world.size() == 3);
    CHECK(world.local_size() == 3);
    CHECK(world.is_main_rank() == (world.rank() == 0));
  });
}

TEST_CASE("a world may be moved, and its copies as a group outlive it") {
  run_worlds_or_throw(2, [](const World& outer) {
    ProcessGroup kept = outer;
    outer.barrier();
    kept.barrier();
  });
  World first =
      init_process_group({.timeout = 5s, .rank = 0, .world_size = 1, .store = std::make_shared<MemoryStore>()});
  World second = std::move(first);
  int one = 1;
  second.all_reduce(one);
  CHECK(one == 1);
}

TEST_CASE("options are one flat list") {
  run_worlds_or_throw(2,
                      [](const World& world) {
                        CHECK(world.timeout() == 7s);
                        CHECK(world.transport() == "tcp");
                      },
                      {.backend = "native", .timeout = 7s, .transport = "tcp"});
  CHECK_ERROR(error_of([] { init_process_group({.backend = "smoke signals"}); }), ErrorKind::invalid_argument,
              "\"smoke signals\" is not in this build, which has native");
}

// feature: A-17
TEST_CASE("groups over different transports exist side by side, and parts may have other options") {
  run_worlds_or_throw(2, [](const World& world) {
    REQUIRE(world.transport() == "shared memory");
    const auto by_tcp = world.new_group({1, 0}, {.timeout = 3s, .transport = "tcp"});
    REQUIRE(by_tcp);
    CHECK(by_tcp->transport() == "tcp");
    CHECK(by_tcp->timeout() == 3s);
    const auto like_the_world = world.split(0);
    CHECK(like_the_world->transport() == "shared memory");
    CHECK(like_the_world->timeout() == 30s);
    int one = 1;
    world.all_reduce(one);
    by_tcp->all_reduce(one);
    CHECK(one == 4);
    if (!is_available("gloo")) return;
    const auto by_gloo = world.split(0, world.rank(), {.backend = "gloo", .timeout = 20s});
    CHECK(by_gloo->transport() == "gloo");
    by_gloo->all_reduce(one);
    CHECK(one == 8);
  });
}

TEST_CASE("parts of a group over TCP share its connections, and run at once") {
  run_worlds_or_throw(4,
                      [&](const World& world) {
                        std::vector<ProcessGroup> parts{*world.split(0)};
                        world.barrier();
                        const auto before = world.rank() == 0 ? entries_of("/proc/self/fd") : 0;
                        world.barrier();
                        for (int i = 1; i < 30; ++i)
                          parts.push_back(*parts[static_cast<std::size_t>(i / 3)].split(i % 5, -world.rank()));
                        world.barrier();
                        if (world.rank() == 0) CHECK(entries_of("/proc/self/fd") == before);
                        world.barrier();
                        // Threads of one rank use the parts in different orders.
                        std::vector<std::jthread> threads;
                        for (int thread = 0; thread < 3; ++thread) {
                          threads.emplace_back([&, thread] {
                            for (int round = 0; round < 5; ++round) {
                              for (int i = thread; i < 30; i += 3) {
                                const at::Tensor sum = at::full({i * 500}, 1.0 * world.rank());
                                parts[static_cast<std::size_t>(i)].all_reduce(sum);
                                if (!at::equal(sum, at::full({i * 500}, 6.0))) throw std::runtime_error("a wrong sum");
                              }
                            }
                          });
                        }
                        threads.clear();
                        parts.front().abort("enough of the first");
                        int one = 1;
                        parts.back().all_reduce(one);
                        CHECK(one == 4);
                        world.all_reduce(one);
                        CHECK(one == 16);
                        CHECK_ERROR(error_of([&] { parts.front().all_reduce(one); }), ErrorKind::aborted,
                                    "enough of the first");
                        // What the connections cannot do needs others.
                        const auto by_two = world.split(0, 0, {.transport = "tcp", .connections = 2});
                        by_two->all_reduce(one);
                        CHECK(one == 64);
                        world.barrier();
                      },
                      {.timeout = 30s, .transport = "tcp"});
}

TEST_CASE("a world that ends since a part has lost a rank tells so, and what has been survived is not told") {
  for (const char* transport : {"shared_memory", "tcp"}) {
    for (const bool is_lost : {true, false}) {
      const auto body = [&](const World& world) {
        auto part = world.split(0)->split(0);
        if (world.rank() == 0) {
          if (is_lost) part.reset();
          world.barrier();
          return world.barrier();
        }
        if (is_lost) part->barrier();
        CHECK_ERROR(error_of([&] { part->barrier({.timeout = 50ms}); }), ErrorKind::timeout);
        world.barrier();
        throw std::runtime_error("something else");
      };
      const auto errors = run_worlds(2, body, {.timeout = 30s, .transport = transport});
      const Error error = error_of([&] { std::rethrow_exception(errors[0]); });
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(error.kind() == ErrorKind::aborted);
      CHECK(contains(text, "rank 1 ended the group: it failed in a subgroup") == is_lost);
      CHECK(contains(text, "rank 0 (host") == is_lost);
    }
  }
}

TEST_CASE("threads of a rank may split a group at the same time") {
  const auto by_two_threads = [](const std::function<void()>& work) {
    std::vector<std::future<void>> threads;
    for (int thread = 0; thread < 2; ++thread) threads.push_back(std::async(std::launch::async, work));
    for (auto& each : threads) each.get();
  };
  for (const char* transport : {"automatic", "tcp"}) {
    run_worlds_or_throw(3,
                        [&](const World& world) {
                          by_two_threads([&] {
                            for (int round = 0; round < 15; ++round) {
                              int one = 1;
                              world.split(0)->all_reduce(one);
                              if (one != 3) throw std::runtime_error("a wrong sum of three");
                            }
                          });
                          by_two_threads([&] {
                            for (int round = 0; round < 15; ++round) {
                              int one = 1;
                              const auto pair = world.new_group({2, 0});
                              if (pair) pair->all_reduce(one);
                              if (one != (pair ? 2 : 1)) throw std::runtime_error("a wrong sum of two");
                            }
                          });
                        },
                        {.timeout = 30s, .transport = transport});
  }
}

TEST_CASE("a split's timeout runs from the call on, also while it waits for its turn") {
  std::promise<void> is_over;
  const auto over = is_over.get_future().share();
  // The group has ended behind it, so both ranks fail.
  const auto failed = run_worlds(2,
                                 [&](const World& world) {
                                   if (world.rank() == 1) {
                                     std::this_thread::sleep_for(1500ms);
                                     (void)world.split(0);  // one of two
                                     over.wait();
                                     return;
                                   }
                                   const TimePoint start = steady_clock().now();
                                   const auto has_timed_out = [&] {
                                     try {
                                       (void)world.split(0);
                                       return false;
                                     } catch (const Error& error) {
                                       return error.kind() == ErrorKind::timeout;
                                     }
                                   };
                                   auto other = std::async(std::launch::async, has_timed_out);
                                   const bool mine = has_timed_out();
                                   CHECK(mine != other.get());
                                   // 1.5 s more if it ran from its turn on.
                                   CHECK(steady_clock().now() - start < 3s);
                                   is_over.set_value();
                                 },
                                 {.timeout = 2s});
  for (const auto& each : failed) CHECK(each != nullptr);
}

TEST_CASE("what a program says of connections and checksums goes before the variables") {
  ::setenv("LOCKSTEP_CONNECTIONS", "6", 1);
  ::setenv("LOCKSTEP_CHECKSUMS", "on", 1);
  CHECK(with_environment({}).connections == 6);
  CHECK(with_environment({.connections = 4}).connections == 4);
  CHECK(with_environment({.checksums = Checksums::off}).checksums == Checksums::off);
  ::setenv("LOCKSTEP_CHECKSUMS", "off", 1);
  CHECK(with_environment({}).checksums == Checksums::off);
  ::unsetenv("LOCKSTEP_CONNECTIONS");
  ::unsetenv("LOCKSTEP_CHECKSUMS");
  CHECK(with_environment({}).checksums == Checksums::on);
}

TEST_CASE("parts that ranks want otherwise are an error on all of them") {
  const auto of_transports = run_worlds(
      2, [](const World& world) { world.split(0, 0, {.transport = world.rank() == 0 ? "automatic" : "tcp"}); });
  for (const auto& each : of_transports) {
    REQUIRE(each);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(each); }), ErrorKind::desync, "transport tcp",
                "transport automatic");
  }
  const auto of_connections = run_worlds(2, [](const World& world) {
    CHECK_ERROR(error_of([&] { world.split(0, 0, {.connections = -3}); }), ErrorKind::invalid_argument,
                "-3 connections to each other rank: 1 to 64 are possible");
    CHECK_ERROR(error_of([&] { world.split(0, 0, {.checksums = static_cast<Checksums>(9)}); }),
                ErrorKind::invalid_argument, "GroupOptions::checksums is 9");
    world.split(0, 0, {.transport = "tcp", .connections = 1 + world.rank()});
  });
  for (const auto& each : of_connections) {
    REQUIRE(each);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(each); }), ErrorKind::desync, "connections 1", "connections 2");
  }
}

// feature: A-01
TEST_CASE("whether a backend is there may be asked at any time, and costs nothing") {
  const auto descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  CHECK(is_available());
  CHECK(is_available("native"));
  CHECK(!is_available("smoke signals"));
  CHECK(!is_available(""));
  CHECK(entries_of("/proc/self/fd") == descriptors);
  CHECK(entries_of("/proc/self/task") == threads);
}

// feature: B-05
TEST_CASE("a program's own scheme finds the ranks") {
  const auto store = std::make_shared<MemoryStore>();
  register_rendezvous_handler("corridor", [store](const Url& url, Deadline) {
    CHECK(url.target == "third-floor");
    CHECK(url.query.at("door") == "left");
    return Rendezvous{.store = store, .rank = std::stoi(url.query.at("seat")), .world_size = 2};
  });
  CHECK_ERROR(
      error_of([&] { register_rendezvous_handler("corridor", [](const Url&, Deadline) { return Rendezvous{}; }); }),
      ErrorKind::invalid_argument, "'corridor' already has a handler");
  CHECK_ERROR(error_of([&] { register_rendezvous_handler("tcp", [](const Url&, Deadline) { return Rendezvous{}; }); }),
              ErrorKind::invalid_argument, "'tcp' already has a handler");
  CHECK_ERROR(error_of([] { init_process_group({.init_method = "stairs://down"}); }), ErrorKind::invalid_argument,
              "env://, tcp://, file://, corridor://");
  run_ranks_or_throw(2, [&](int rank) {
    const World world = init_process_group(
        {.init_method = "corridor://third-floor?door=left&seat=" + std::to_string(rank), .timeout = 20s});
    int one = 1;
    world.all_reduce(one);
    CHECK(one == 2);
    CHECK(world.membership().source.starts_with("corridor://"));
  });
  register_rendezvous_handler("nowhere", [](const Url&, Deadline) { return Rendezvous{}; });
  CHECK_ERROR(error_of([] { init_process_group({.init_method = "nowhere://"}); }), ErrorKind::invalid_argument,
              "'nowhere://': its handler returned no store");
}

// feature: A-16, G-05
TEST_CASE("a line is printed once, by rank 0") {
  const std::string output = standard_output_of(
      [] { run_worlds_or_throw(4, [](const World& world) { log_rank0(world, "epoch %d: loss %.2f", 3, 0.25); }); });
  CHECK(output == "epoch 3: loss 0.25\n");
}

// feature: A-16, Z-20
TEST_CASE("rank 0 is first, and the others find what it has made") {
  const TemporaryDirectory folder;
  const std::string path = folder / "prepared";
  run_worlds_or_throw(3, [&](const World& world) {
    const bool made = main_rank_first(world, [&] {
      const bool found = std::filesystem::exists(path);
      if (!found) std::ofstream(path) << "data";
      return !found;
    });
    CHECK(made == (world.rank() == 0));
    main_rank_first(world, [] {});
  });
}

TEST_CASE("what rank 0 fails with reaches all ranks, and the group goes on") {
  run_worlds_or_throw(3, [](const World& world) {
    bool ran = false;
    const auto prepare = [&] {
      ran = true;
      if (world.rank() == 0) throw Error(ErrorKind::corrupt_data, "the download is damaged");
    };
    const Error error = error_of([&] { main_rank_first(world, prepare); });
    CHECK((error.kind() == (world.rank() == 0 ? ErrorKind::corrupt_data : ErrorKind::invalid_argument)));
    CHECK(std::string(error.what()).find("the download is damaged") != std::string::npos);
    CHECK(ran == (world.rank() == 0));
    world.barrier();
  });
}

// feature: G-11
TEST_CASE("ranks draw other numbers, and the same ones in each run") {
  run_worlds_or_throw(3, [](const World& world) {
    // The generator is the whole process's, and ranks are threads here.
    std::vector<at::Tensor> drawn;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == world.rank()) {
        for (int run = 0; run < 2; ++run) {
          seed_all(5, world);
          drawn.push_back(at::rand({4}));
        }
        seed_all(5);
        drawn.push_back(at::rand({4}));
      }
      world.barrier();
    }
    CHECK(drawn[0].equal(drawn[1]));
    CHECK(drawn[0].equal(drawn[2]) == (world.rank() == 0));
    const auto all = world.all_gather(drawn[0]);
    CHECK(!all[0].equal(all[1]));
    CHECK(!all[1].equal(all[2]));
    const auto same = world.all_gather(drawn[2]);
    CHECK(same[0].equal(same[2]));
  });
}

}  // namespace world_test
