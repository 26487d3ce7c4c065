// join() with threads as ranks; tests/process/rendezvous has the same with processes.
#include <array>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/memory_store.h"
#include "lockstep/comm/store/store_server.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"
#include "tests/support/temporary_directory.h"

namespace join_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(Variables variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

const Token& job_token() {
  static const Token token = Token::generate();
  return token;
}

JoinOptions options(const std::string& url) {
  JoinOptions options;
  options.init_method = url;
  options.token = job_token();
  options.timeout = 10s;
  return options;
}

std::uint16_t free_port() { return Listener::bind({"127.0.0.1", 0}, Deadline::after(1s)).address().port(); }

std::vector<Membership> join_all(const std::vector<std::pair<JoinOptions, Variables>>& ranks) {
  std::vector<std::future<Membership>> joining;
  for (const auto& [option, variables] : ranks) {
    joining.push_back(
        std::async(std::launch::async, [&option, env = environment(variables)] { return join(option, env); }));
  }
  std::vector<Membership> memberships;
  for (auto& one : joining) memberships.push_back(one.get());
  return memberships;
}

using Way = std::function<std::pair<JoinOptions, Variables>(int rank)>;

void check_world_of_three(const Way& way) {
  std::vector<std::pair<JoinOptions, Variables>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(way(rank));
  const std::vector<Membership> memberships = join_all(ranks);
  for (int rank = 0; rank < 3; ++rank) {
    const Membership& seen = memberships[static_cast<std::size_t>(rank)];
    CHECK(seen.rank == rank);
    CHECK(seen.size == 3);
    CHECK(seen.local_rank == rank);
    CHECK(seen.local_size == 3);
    CHECK(seen.node_rank == 0);
    CHECK(seen.nodes == 1);
    REQUIRE(seen.members.size() == 3);
    CHECK(seen.members[2].rank == 2);
    CHECK(seen.members[2].address == "127.0.0.1");
  }
  memberships[1].store->set("from 1", "hello", Deadline::after(1s));
  CHECK(memberships[2].store->get("from 1", Deadline::after(1s)) == "hello");
}

}  // namespace

TEST_CASE("alone: a world of one whose store works") {
  const Membership alone = join({}, environment({}));
  CHECK(alone.size == 1);
  CHECK(alone.rank == 0);
  CHECK(alone.nodes == 1);
  CHECK(alone.local_size == 1);
  CHECK(alone.source == "alone");
  REQUIRE(alone.members.size() == 1);
  alone.store->set("k", "v", Deadline::after(1s));
  CHECK(alone.store->get("k", Deadline::after(1s)) == "v");
}

TEST_CASE("a library that says otherwise than the launcher is refused, and rank 0's failure reaches the others") {
  JoinOptions started;
  started.bootstrap = [] { return Bootstrap{.name = "MPI", .rank = 0, .size = 1}; };
  const Variables mpirun{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}};
  CHECK_ERROR(error_of([&] { join(started, environment(mpirun)); }), ErrorKind::invalid_argument,
              "MPI says rank 0 of 1, but the launcher has started 2", "LOCKSTEP_LAUNCHER=none");
  started.bootstrap = [] {
    return Bootstrap{.name = "MPI", .rank = 0, .size = 2, .from_rank_zero = [](auto& text, auto) { return text; }};
  };
  CHECK_ERROR(error_of([&] {
                join(started, environment({{"LOCKSTEP_BIND", "192.0.2.1"}}));
              }),
              ErrorKind::invalid_argument, "rank 0 cannot make a store that the other ranks reach", "192.0.2.1");
}

TEST_CASE("an invalid descriptor of a launcher is an error that says what to set") {
  const Variables hydra{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "1000000"}};
  CHECK_ERROR(error_of([&] { join({}, environment(hydra)); }), ErrorKind::invalid_argument, "descriptor 1000000",
              "MASTER_PORT");
}

TEST_CASE("a level of the log that does not exist keeps a job from beginning") {
  ::setenv("LOCKSTEP_LOG", "verbose", 1);
  CHECK_ERROR(error_of([] { join({}, environment({})); }), ErrorKind::invalid_argument, "LOCKSTEP_LOG is 'verbose'");
  ::unsetenv("LOCKSTEP_LOG");
}

// feature: A-04
TEST_CASE("over tcp://, a file, a given store and a launcher's store all ranks see the same world") {
  const std::uint16_t port = free_port();
  TemporaryDirectory directory;
  const auto shared = std::make_shared<MemoryStore>();
  const StoreServer launcher({"127.0.0.1", 0}, {.token = job_token(), .job_id = "default"});
  Way way;
  SUBCASE("tcp") {
    way = [&](int rank) {
      return std::pair(options(fmt::format("tcp://127.0.0.1:{}?world_size=3&rank={}", port, rank)), Variables{});
    };
  }
  SUBCASE("file") {
    way = [&](int rank) {
      return std::pair(options(fmt::format("file://{}?world_size=3&rank={}", directory / "meet", rank)), Variables{});
    };
  }
  SUBCASE("given store") {
    way = [&](int rank) {
      JoinOptions given = options("");
      given.store = shared;
      given.rank = rank;
      given.world_size = 3;
      return std::pair(given, Variables{});
    };
  }
  SUBCASE("launcher") {
    way = [&](int rank) {
      return std::pair(options(""), Variables{{"RANK", std::to_string(rank)},
                                              {"WORLD_SIZE", "3"},
                                              {"LOCKSTEP_STORE", to_string(launcher.address())}});
    };
  }
  check_world_of_three(way);
}

TEST_CASE("ranks that a library or another launcher has started see the same world") {
  const auto shared = std::make_shared<MemoryStore>();
  const std::array to_launcher{make_socket_pair(), make_socket_pair(), make_socket_pair()};
  Way way;
  SUBCASE("a library that started the ranks") {
    way = [&](int rank) {
      JoinOptions started;
      started.timeout = 10s;
      started.bootstrap = [shared, rank] {
        return Bootstrap{
            .name = "a library", .rank = rank, .size = 3, .from_rank_zero = [shared, rank](auto& text, auto deadline) {
              if (rank == 0) shared->set("word", text, deadline);
              return shared->get("word", deadline);
            }};
      };
      return std::pair(started, Variables{});
    };
  }
  SUBCASE("one process of a launcher") {
    way = [&](int rank) {
      const int fd = to_launcher[static_cast<std::size_t>(rank)].first.get();
      return std::pair(options(""), Variables{{"PMI_RANK", std::to_string(rank)},
                                              {"PMI_SIZE", "3"},
                                              {"MPI_LOCALRANKID", std::to_string(rank)},
                                              {"MPI_LOCALNRANKS", "3"},
                                              {"PMI_FD", std::to_string(fd)}});
    };
  }
  check_world_of_three(way);
}

TEST_CASE("a process can leave a world and join another one in the same store, with keys of its own") {
  const StoreServer launcher({"127.0.0.1", 0}, {.token = job_token(), .job_id = "default"});
  std::vector<std::pair<JoinOptions, Variables>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(options(""), Variables{{"RANK", std::to_string(rank)},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCKSTEP_STORE", to_string(launcher.address())}});
  }
  for (int world = 0; world < 3; ++world) {
    const std::vector<Membership> memberships = join_all(ranks);
    CHECK_FALSE(memberships[0].store->check({"left over"}, Deadline::after(5s)));
    memberships[1].store->set("left over", "", Deadline::after(5s));
    CHECK(memberships[0].store->check({"left over"}, Deadline::after(5s)));
  }
}

// feature: A-02
TEST_CASE("a process that joins a second time has a second world beside the first") {
  const StoreServer launcher({"127.0.0.1", 0}, {.token = job_token(), .job_id = "default"});
  const std::string by_hand = fmt::format("tcp://127.0.0.1:{}", free_port());
  for (const std::string& url : {std::string(), by_hand}) {
    CAPTURE(url);
    std::vector<std::pair<JoinOptions, Variables>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back(options(url), Variables{{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}});
      if (url.empty()) ranks.back().second["LOCKSTEP_STORE"] = to_string(launcher.address());
    }
    const std::vector<Membership> first = join_all(ranks), second = join_all(ranks);
    first[0].store->set("mine", "1", Deadline::after(5s));
    CHECK_FALSE(second[1].store->check({"mine"}, Deadline::after(5s)));
    CHECK(first[1].store->get("mine", Deadline::after(5s)) == "1");
  }
}

// fault: 42
TEST_CASE("a thousand restarts in one store never meet what an earlier one has left behind") {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::pair<JoinOptions, Variables>> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    JoinOptions& option = ranks[static_cast<std::size_t>(rank)].first;
    option = options("");
    option.store = store;
    option.rank = rank;
    option.world_size = 2;
  }
  for (int restart = 0; restart < 1000; ++restart) {
    CAPTURE(restart);
    for (auto& [option, variables] : ranks) variables["LOCKSTEP_GENERATION"] = std::to_string(restart);
    if (restart % 10 == 3) {  // one that dies half way: only one of the ranks comes
      JoinOptions alone = ranks[static_cast<std::size_t>(restart / 10 % 2)].first;
      alone.timeout = 2ms;
      CHECK_ERROR(error_of([&] { join(alone, environment(ranks[0].second)); }), ErrorKind::timeout, "rank");
      continue;
    }
    const std::vector<Membership> memberships = join_all(ranks);
    REQUIRE(memberships[1].generation == static_cast<std::uint64_t>(restart));
    REQUIRE(memberships[0].store->add("own", 1, Deadline::after(5s)) == 1);
  }
}

TEST_CASE("ranks with different LOCKSTEP_NODE are placed as on different hosts") {
  const std::uint16_t port = free_port();
  std::vector<std::pair<JoinOptions, Variables>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const char* node = rank % 2 == 0 ? "even" : "odd";
    ranks.emplace_back(options(fmt::format("tcp://127.0.0.1:{}?world_size=4&rank={}", port, rank)),
                       Variables{{"LOCKSTEP_NODE", node}});
  }
  const std::vector<Membership> memberships = join_all(ranks);
  for (int rank = 0; rank < 4; ++rank) {
    const Membership& seen = memberships[static_cast<std::size_t>(rank)];
    CHECK(seen.nodes == 2);
    CHECK(seen.local_rank == rank / 2);
    CHECK(seen.local_size == 2);
    CHECK(seen.node_rank == rank % 2);
    CHECK(seen.members[0].node_id == seen.members[2].node_id);
    CHECK(seen.members[0].node_id != seen.members[1].node_id);
    CHECK(seen.members[0].address == "127.0.0.1");
  }
}

// feature: B-04
TEST_CASE("an address that only its own host can reach is named on every rank") {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::future<Error>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      JoinOptions given = options("");
      given.store = store;
      given.rank = rank;
      given.world_size = 2;
      const Variables variables{{"LOCKSTEP_NODE", std::to_string(rank)},
                                {"LOCKSTEP_ADDRESS", rank == 0 ? "127.0.1.1" : "10.0.0.2"}};
      return error_of([&] { join(given, environment(variables)); });
    }));
  }
  for (auto& rank : ranks) {
    CHECK_ERROR(rank.get(), ErrorKind::invalid_argument, "rank 0 (host", "127.0.1.1", "MASTER_ADDR",
                "LOCKSTEP_ADDRESS");
  }
}

TEST_CASE("another generation is refused with both numbers") {
  const std::uint16_t port = free_port();
  const std::string url = fmt::format("tcp://127.0.0.1:{}?world_size=2&rank=", port);
  auto old = std::async(std::launch::async, [&] {
    JoinOptions waits = options(url + "0");
    waits.timeout = 1s;
    return error_of([&] { join(waits, environment({{"LOCKSTEP_GENERATION", "1"}})); });
  });
  CHECK_ERROR(error_of([&] {
                join(options(url + "1"), environment({{"LOCKSTEP_GENERATION", "2"}}));
              }),
              ErrorKind::invalid_argument, "generation 1", "generation 2", "rank 1 (host");
  CHECK_ERROR(old.get(), ErrorKind::timeout, "rank 1 did not join");
}

TEST_CASE("another job id is unauthorized and the text says what to compare") {
  const std::uint16_t port = free_port();
  const std::string url = fmt::format("tcp://127.0.0.1:{}?world_size=2&rank=", port);
  auto first = std::async(std::launch::async, [&] {
    JoinOptions waits = options(url + "0");
    waits.timeout = 1s;
    return error_of([&] { join(waits, environment({{"LOCKSTEP_JOB_ID", "a"}})); });
  });
  CHECK_ERROR(error_of([&] {
                join(options(url + "1"), environment({{"LOCKSTEP_JOB_ID", "b"}}));
              }),
              ErrorKind::unauthorized, "LOCKSTEP_JOB_ID", "'b'");
  CHECK(first.get().kind() == ErrorKind::timeout);
}

}  // namespace join_test
