// A transport is added by one registration: then its name works everywhere, and errors list it.
#include "lockstep/comm/group/transports.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/group/connect.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_worlds.h"

namespace transports_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

std::atomic<int> g_flights{0};  // ranks that pigeons have connected
thread_local std::string t_obstacle;

// Ranks are threads here, so that memory of this process connects them.
Connected connect_by_pigeon(const RanksToConnect& ranks) {
  static std::mutex mutex;
  static std::map<std::string, std::pair<int, std::vector<std::unique_ptr<Arena>>>> lofts;
  const std::lock_guard lock(mutex);
  ++g_flights;
  auto& [taken, arenas] = lofts[ranks.name];
  if (arenas.empty()) arenas = make_local_arenas(ranks.membership.size);
  auto mine = std::move(arenas[static_cast<std::size_t>(ranks.membership.rank)]);
  if (++taken == ranks.membership.size) lofts.erase(ranks.name);
  return {.engine = std::make_unique<ArenaEngine>(std::move(mine))};
}

const bool registered = [] {
  register_transport({.name = "pigeon",
                      .description = "the memory of this process",
                      .obstacle_here = [] { return t_obstacle; },
                      .connect = connect_by_pigeon});
  return true;
}();

// The sum of a group's ranks, and a message from each to the next.
void use(const ProcessGroup& group) {
  int sum = group.rank();
  group.all_reduce(sum);
  CHECK(sum == group.size() * (group.size() - 1) / 2);
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor received = at::zeros({1}, at::kInt);
  const Work sent = group.send_async(at::full({1}, group.rank(), at::kInt), next);
  group.recv(received, previous);
  sent.wait();
  CHECK(received.item<int>() == previous);
}

int flights_of(const std::function<void()>& run) {
  const int before = g_flights;
  run();
  return g_flights - before;
}

// Over ranks that are threads, as if each were on a node of its own.
void use_apart(int grounded) {
  run_worlds_or_throw(3, [&](const World& world) {
    Membership apart = world.membership();
    for (Member& member : apart.members) member.node_id = std::to_string(member.rank);
    t_obstacle = world.rank() == grounded ? "it has no loft" : "";
    GroupOptions options = with_environment({.timeout = 20s});
    options.backend = "native";
    use(connect_ranks(apart, "apart", options, {}, Deadline::after(20s)));
    world.barrier();
    if (world.rank() == 0) CHECK_FALSE(world.store().check({"transport pigeon of apart/answer"}, Deadline::after(5s)));
  });
}

}  // namespace

// feature: A-17
TEST_CASE("a transport that a program registers is used by its name") {
  const InitOptions by_name{.timeout = 20s, .transport = "pigeon"};
  CHECK(flights_of([&] { run_worlds_or_throw(3, use, by_name); }) == 3);
  ::setenv("LOCKSTEP_TRANSPORT", "Pigeon", 1);
  CHECK(flights_of([&] { run_worlds_or_throw(2, use, {.timeout = 20s}); }) == 2);
  // The program goes before the variable.
  CHECK(flights_of([&] { run_worlds_or_throw(2, use, {.timeout = 20s, .transport = "automatic"}); }) == 0);
  ::unsetenv("LOCKSTEP_TRANSPORT");
  const auto split = [](const World& world) {
    use(*world.split(0, 0, {.timeout = 20s, .transport = "pigeon"}));
    const auto pair = world.new_group({2, 0});
    if (pair) use(*pair);
  };
  CHECK(flights_of([&] { run_worlds_or_throw(3, split, {.timeout = 20s}); }) == 3);
  CHECK(flights_of([&] { run_worlds_or_throw(3, split, by_name); }) == 3 + 3 + 2);
}

TEST_CASE("without a name, ranks use the first transport that all of them can") {
  CHECK(flights_of([] { run_worlds_or_throw(3, use, {.timeout = 20s}); }) == 0);  // they share memory
  CHECK(flights_of([] { use_apart(-1); }) == 3);
  CHECK(flights_of([] { use_apart(1); }) == 0);
}

TEST_CASE("a transport that one rank cannot use is an error on all that names it, with why and what to do") {
  const auto store = std::make_shared<MemoryStore>();
  const auto errors = run_ranks(3, [&](int rank) {
    t_obstacle = rank == 1 ? "it has no loft; build one" : "";
    (void)init_process_group({.timeout = 20s, .rank = rank, .world_size = 3, .store = store, .transport = "pigeon"});
  });
  for (const auto& each : errors) {
    REQUIRE(each);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(each); }), ErrorKind::invalid_argument,
                "the transport pigeon (the memory of this process) cannot be used: rank 1 (host ",
                "it has no loft; build one; use automatic, shared_memory or tcp (LOCKSTEP_TRANSPORT");
  }
}

TEST_CASE("an unknown transport is refused with those that there are") {
  const char* const known = "smoke'; it can be automatic, shared_memory, pigeon or tcp";
  CHECK_ERROR(error_of([] { init_process_group({.transport = "smoke"}); }), ErrorKind::invalid_argument,
              std::string("GroupOptions::transport is '") + known);
  ::setenv("LOCKSTEP_TRANSPORT", "smoke", 1);
  CHECK_ERROR(error_of([] { init_process_group(); }), ErrorKind::invalid_argument,
              std::string("LOCKSTEP_TRANSPORT is '") + known);
  ::unsetenv("LOCKSTEP_TRANSPORT");
  for (const char* taken : {"", "automatic", "tcp", "pigeon"}) {
    CHECK_ERROR(error_of([&] { register_transport({.name = taken, .description = "", .connect = connect_by_pigeon}); }),
                ErrorKind::invalid_argument, "a name other than automatic, shared_memory, pigeon or tcp");
  }
}

TEST_CASE("ranks that ask for different transports are named, with both") {
  const auto store = std::make_shared<MemoryStore>();
  const auto errors = run_ranks(2, [&](int rank) {
    (void)init_process_group({.timeout = 20s,
                              .rank = rank,
                              .world_size = 2,
                              .store = store,
                              .transport = rank == 0 ? "automatic" : "pigeon"});
  });
  for (const auto& each : errors) {
    REQUIRE(each);
    CHECK_ERROR(error_of([&] { std::rethrow_exception(each); }), ErrorKind::invalid_argument,
                "the ranks disagree about backend or transport: rank ", "transport pigeon",
                "transport automatic of shared_memory, pigeon, tcp");
  }
}

TEST_CASE("the page of variables lists the transports of the table") {
  std::ifstream page(LOCKSTEP_VARIABLES_PAGE);
  std::vector<std::string> rows, expected;
  bool is_listing = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) is_listing = line == "## Transports";
    if (is_listing && line.starts_with("| `")) rows.push_back(line);
  }
  for (const TransportEntry& entry : transports()) {
    if (entry.name != "pigeon") expected.push_back("| `" + entry.name + "` | " + entry.description + " |");
  }
  CHECK(rows == expected);
}

}  // namespace transports_test
