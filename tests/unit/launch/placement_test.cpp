#include "lockstep/job/launch/placement.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include <string>
#include <vector>

#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/cores.h"
#include "tests/support/expect_error.h"

namespace placement_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// 2 packages, 2 NUMA nodes each, 4 cores each, 2 CPUs each, numbered core by core: CPUs 0 and 1 are core 0.
constexpr const char* kServer = "pack:2 numa:2 core:4 pu:2";

std::vector<std::string> cpus(const std::vector<Placement>& placements) {
  std::vector<std::string> lists;
  for (const Placement& one : placements) lists.push_back(one.cpus);
  return lists;
}

using Lists = std::vector<std::string>;

}  // namespace

TEST_CASE("cores are dealt out in blocks, the same number to each rank") {
  const Machine server = Machine::synthetic(kServer);
  CHECK(server.cores() == 16);
  const auto four = server.place(Binding::core, 4);
  CHECK(cpus(four) == Lists{"0-7", "8-15", "16-23", "24-31"});
  CHECK(four[3].cores == 4);
  CHECK(four[1].mask == std::vector<unsigned long>{0xff00});
  CHECK(four[1].memory_node == -1);
  const auto three = server.place(Binding::core, 3);
  CHECK(cpus(three) == Lists{"0-9", "10-19", "20-29"});
  CHECK(three[0].cores == 5);
}

TEST_CASE("more ranks than cores share them, neighbours the same one") {
  const auto placed = Machine::synthetic("core:2 pu:2").place(Binding::core, 4);
  CHECK(cpus(placed) == Lists{"0-1", "0-1", "2-3", "2-3"});
  CHECK(placed[0].cores == 1);
}

TEST_CASE("ranks share NUMA nodes and sockets, and their cores") {
  const Machine server = Machine::synthetic(kServer);
  const auto nodes = server.place(Binding::numa, 8);
  CHECK(cpus(nodes) == Lists{"0-7", "0-7", "8-15", "8-15", "16-23", "16-23", "24-31", "24-31"});
  CHECK(nodes[3].cores == 2);
  CHECK(nodes[3].memory_node == 1);
  const auto sockets = server.place(Binding::socket, 4);
  CHECK(cpus(sockets) == Lists{"0-15", "0-15", "16-31", "16-31"});
  CHECK(sockets[0].cores == 4);
  CHECK(sockets[0].memory_node == -1);
}

TEST_CASE("fewer ranks than NUMA nodes have several each, and no node's memory first") {
  const auto placed = Machine::synthetic(kServer).place(Binding::numa, 2);
  CHECK(cpus(placed) == Lists{"0-15", "16-31"});
  CHECK(placed[0].cores == 8);
  CHECK(placed[0].memory_node == -1);
}

TEST_CASE("a core complex is what shares the last cache") {
  CHECK(cpus(Machine::synthetic("pack:1 l3:2 core:4 pu:1").place(Binding::cache, 2)) == Lists{"0-3", "4-7"});
  CHECK(cpus(Machine::synthetic("pack:1 l2:4 core:1 pu:1").place(Binding::cache, 2)) == Lists{"0-1", "2-3"});
}

TEST_CASE("only CPUs that this process may use are given away") {
  const Machine allowed = Machine::synthetic(kServer, "4-11,30");
  CHECK(allowed.cores() == 5);
  CHECK(cpus(allowed.place(Binding::core, 5)) == Lists{"4-5", "6-7", "8-9", "10-11", "30"});
  CHECK(cpus(allowed.place(Binding::numa, 3)) == Lists{"4-7", "8-11", "30"});
  CHECK(cpus(allowed.place(Binding::socket, 2)) == Lists{"4-11", "30"});
  CHECK(allowed.place(Binding::numa, 3)[2].memory_node == 3);
}

TEST_CASE("CPUs beyond 64 have their place in the mask") {
  const auto placed = Machine::synthetic("pack:2 core:40 pu:1").place(Binding::socket, 2);
  CHECK(placed[1].cpus == "40-79");
  CHECK(placed[1].mask == std::vector<unsigned long>{0xffffff0000000000, 0xffff});
}

TEST_CASE("without binding nothing is said") {
  const auto placed = Machine::synthetic(kServer).place(Binding::none, 2);
  REQUIRE(placed.size() == 2);
  CHECK(placed[0].mask.empty());
  CHECK(describe(placed, 0) == "ranks are not bound to processor cores");
  CHECK(place_ranks(Binding::none, 2).empty());
}

TEST_CASE("what was chosen, of many ranks the first and the last") {
  const Machine server = Machine::synthetic(kServer);
  CHECK(describe(server.place(Binding::core, 2), 4) == "rank 4: CPUs 0-15; rank 5: CPUs 16-31");
  CHECK(describe(server.place(Binding::numa, 4), 0).ends_with("rank 3: CPUs 24-31, memory of node 3"));
  CHECK(describe(server.place(Binding::core, 64), 0).ends_with("; rank 14: CPUs 6-7; ...; rank 63: CPUs 30-31"));
}

TEST_CASE("torchrun's names of bindings are understood") {
  CHECK(parse_binding("exclusive") == Binding::core);
  CHECK(parse_binding("node") == Binding::numa);
  CHECK(parse_binding("core-complex") == Binding::cache);
  CHECK(parse_binding("none") == Binding::none);
  CHECK(parse_binding("") == Binding::none);
  CHECK_ERROR(error_of([] { parse_binding("nodes"); }), ErrorKind::invalid_argument, "'nodes'", "core, socket, numa");
}

TEST_CASE("this machine has physical cores, no more than CPUs") {
  CHECK(physical_cores() >= 1);
  CHECK(physical_cores() <= available_cores());
}

TEST_CASE("a child runs where it was placed") {
  const Placement placement = Machine::here().place(Binding::core, 2).front();
  Command command{.path = "/bin/sh",
                  .argv = {"sh", "-c", "grep -q \"^Cpus_allowed_list:.$0\\$\" /proc/self/status", placement.cpus},
                  .environment = {"PATH=/usr/bin:/bin"},
                  .keep_fds = {},
                  .cpu_mask = placement.mask,
                  .memory_node = 0};
  sigset_t mask{};
  ChildProcess child = ChildProcess::start(command, mask);
  pollfd ended{child.pidfd(), POLLIN, 0};
  REQUIRE(::poll(&ended, 1, 10'000) == 1);
  const auto status = child.try_reap();
  REQUIRE(status.has_value());
  CHECK(status->ok());
}

}  // namespace placement_test
