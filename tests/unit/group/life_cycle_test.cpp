// How groups begin and end, and what they promise whatever they are made of.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/comm/net/listener.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/local_worlds.h"
#include "tests/support/temporary_directory.h"

namespace life_cycle_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

std::ptrdiff_t entries_of(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& each) {
    return each.what();
  }
  return "";
}

}  // namespace

// feature: A-03
TEST_CASE("there is nothing to call before there is a group") {
  CHECK_FALSE(std::is_default_constructible_v<ProcessGroup>);
  CHECK_FALSE(std::is_default_constructible_v<World>);
  CHECK_FALSE(std::is_copy_constructible_v<World>);  // so that only one of them ends it
  CHECK(std::is_copy_constructible_v<ProcessGroup>);
}

// feature: A-02
TEST_CASE("rank and size are arguments, and the environment says where rank 0 is") {
  const TemporaryDirectory home;  // where the token comes to lie
  const char* before = std::getenv("HOME");
  const std::string own_home = before == nullptr ? "" : before;
  const std::uint16_t port = Listener::bind({"127.0.0.1", 0}, Deadline::after(1s)).address().port();
  ::setenv("HOME", home.path().c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  for (const std::string backend : {"native", "gloo"}) {
    if (!is_available(backend)) continue;
    CAPTURE(backend);
    run_ranks_or_throw(3, [&](int rank) {
      const World world = init_process_group({.backend = backend, .timeout = 30s, .rank = rank, .world_size = 3});
      CHECK(world.rank() == rank);
      CHECK(world.size() == 3);
      int one = 1;
      world.all_reduce(one);
      CHECK(one == 3);
      world.barrier();
    });
  }
  ::setenv("HOME", own_home.c_str(), 1);
  ::unsetenv("MASTER_ADDR");
  ::unsetenv("MASTER_PORT");
}

// feature: A-08
TEST_CASE("worlds that begin and end again and again leave no thread, no socket and no memory file") {
  for (const char* transport : {"automatic", "tcp"}) {
    const auto live = [&] {
      run_worlds_or_throw(2,
                          [](const World& world) {
                            int one = 1;
                            world.all_reduce(one);
                            const at::Tensor tensor = at::ones({1000});
                            world.all_reduce_async(tensor).wait();
                            CHECK(one == 2);
                          },
                          {.timeout = 30s, .transport = transport});
    };
    live();
    const auto descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    for (int i = 0; i < 20; ++i) live();
    CHECK(entries_of("/proc/self/fd") == descriptors);
    CHECK(entries_of("/proc/self/task") == threads);
  }
}

// feature: A-11
TEST_CASE("the backend is chosen by what tensors are on, where nobody names one") {
  const auto on = [](at::DeviceType device, const std::string& expected) {
    run_worlds_or_throw(2, [&](const World& world) { CHECK(world.transport() == expected); },
                        {.timeout = 30s, .device = at::Device(device, device == at::kCPU ? -1 : 0)});
  };
  on(at::kCPU, "shared memory");
  on(at::kCUDA, "shared memory");  // for what the ranks tell each other, at least
}

// feature: C-10
TEST_CASE("a barrier lets nobody pass before all have come") {
  for (const Over transport : kTransports) {
    std::atomic<int> came{0};
    run_group_or_throw(4, transport, [&](const ProcessGroup& group) {
      for (int round = 1; round <= 100; ++round) {
        ++came;
        group.barrier();
        if (came < 4 * round) throw std::runtime_error("passed too early");
      }
    });
    CHECK(came == 400);
  }
}

// feature: C-06
TEST_CASE("a list that is too short is refused on the root, and the others are told of it when the root leaves") {
  for (const char* transport : {"automatic", "tcp"}) {
    const auto errors = run_worlds(3,
                                   [](const World& world) {
                                     std::vector<at::Tensor> inputs;
                                     if (world.rank() == 1) inputs.push_back(at::zeros({4}));
                                     world.scatter(at::empty({4}), inputs, 1);
                                   },
                                   {.timeout = 30s, .transport = transport});
    for (const auto& error : errors) CHECK(contains(text_of(error), "scatter"));
    for (const std::size_t rank : {0U, 2U}) CHECK(contains(text_of(errors[rank]), "rank 1"));
  }
}

// feature: K-01, Z-09
TEST_CASE("a call may take half an hour, or what the group or the call says, and a timeout tells how long it waited") {
  CHECK(GroupOptions().timeout == 30min);
  CHECK(InitOptions().timeout == 30min);
  for (const Over transport : kTransports) {
    const auto errors = run_group(2, transport,
                                  [](const ProcessGroup& group) {
                                    CHECK(group.timeout() == 300ms);
                                    group.barrier({.timeout = 20s});
                                    if (group.rank() == 0) group.barrier();
                                  },
                                  {.timeout = 300ms});
    const std::string text = text_of(errors[0]);
    CAPTURE(text);
    const std::size_t at = text.find(" after ");
    REQUIRE(at != std::string::npos);
    const double waited = std::atof(text.c_str() + at + 7);
    CHECK(waited >= 0.29);
    CHECK(waited < 20);
  }
}

// feature: K-02
TEST_CASE("a call whose turn does not come is told by its name, and so is what has the turn") {
  const auto groups = local_groups(2, Over::arena, {.timeout = 30s});
  FlightRecord probe;
  const std::uint64_t next = process_recorder().add(probe).number + 1;
  auto first = std::async(std::launch::async, [&] { groups[0].barrier({.name = "end of epoch"}); });
  while (!process_recorder().find(next)) std::this_thread::yield();
  const at::Tensor sum = at::ones({4});
  const Work late = groups[0].all_reduce_async(
      sum, ReduceOp::sum, {.timeout = 1ms, .name = "gradient bucket 0 (fc.weight) of backward", .number = 3});
  CHECK_ERROR(
      error_of([&] { late.wait(Deadline::after(20s)); }), ErrorKind::timeout,
      "all_reduce(sum) of 4 float32, gradient bucket 0 (fc.weight) of backward 3 timed out on rank 0 before its "
      "turn came",
      "the last that it started is barrier #1, end of epoch");
  CHECK_THROWS_AS(first.get(), Error);
}

}  // namespace life_cycle_test
