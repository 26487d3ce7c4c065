#include "lockstep/job/elastic/slots.h"

#include <doctest/doctest.h>

namespace slots_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::vector<int> hosts_of(const std::vector<Slot>& slots) {
  std::vector<int> hosts;
  for (const Slot& slot : slots) hosts.push_back(slot.host);
  return hosts;
}

}  // namespace

TEST_CASE("hosts are numbered as they arrive") {
  const auto slots = assign_slots({{.number = 0, .ranks = 2}, {.number = 1, .ranks = 1}, {.number = 2, .ranks = 3}}, 8);
  CHECK(slots == std::vector<Slot>{{0, 0, 0, 2}, {1, 1, 2, 1}, {2, 2, 3, 3}});
  CHECK(world_size(slots) == 6);
}

TEST_CASE("who has asked for a node rank gets it") {
  CHECK(hosts_of(assign_slots({{.number = 0}, {.number = 1, .wanted = 0}, {.number = 2, .wanted = 2}}, 3)) ==
        std::vector<int>{1, 0, 2});
  // A number that is too high for those who are there is an order.
  CHECK(hosts_of(assign_slots({{.number = 0, .wanted = 7}, {.number = 1, .wanted = 5}}, 8)) == std::vector<int>{1, 0});
}

TEST_CASE("numbers stay over restarts, and spares wait") {
  CHECK(hosts_of(assign_slots({{.number = 0, .node_rank = 0}, {.number = 2, .node_rank = 2}, {.number = 3}}, 3)) ==
        std::vector<int>{0, 3, 2});
  CHECK(hosts_of(assign_slots({{.number = 1}, {.number = 2, .node_rank = 0}, {.number = 3, .node_rank = 1}}, 2)) ==
        std::vector<int>{2, 3});
}

TEST_CASE("what is told of slots") {
  const std::vector<HostEntry> hosts{{.number = 0, .name = "a", .ranks = 2}, {.number = 1, .name = "b"}};
  CHECK(describe_slots(assign_slots(hosts, 2), hosts) == "a: ranks 0 to 1; b: rank 2");
}

}  // namespace slots_test
