#include "lockstep/comm/transport/cpu_placement.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace cpu_placement_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("a rank leaves a core for one with fewer ranks") {
  const std::vector<int> two{0, 1};
  const auto choice = [&](std::vector<std::uint32_t> cores, int rank) { return emptier_core(cores, rank, two); };
  CHECK(choice({1, 1}, 1) == 1);
  CHECK(choice({2, 2}, 1) == 0);
  CHECK(choice({1, 1}, 0) == -1);        // the lower one stays
  CHECK(choice({1, 2}, 1) == -1);        // has a core of its own
  CHECK(choice({1, 1, 2}, 1) == -1);     // would only change sides
  CHECK(choice({1, 1, 1, 2}, 2) == 1);   // three and one become two and two
  CHECK(choice({1, 1, 2, 2}, 3) == -1);  // as even as it gets
  CHECK(choice({0, 0}, 1) == -1);        // nobody has waited yet
  CHECK(emptier_core(std::vector<std::uint32_t>{1, 1}, 1, std::vector<int>{0}) == -1);
  CHECK(emptier_core(std::vector<std::uint32_t>{1, 1, 1}, 2, std::vector<int>{0, 1, 2}) == 1);
}

TEST_CASE("a thread that is moved may still run where it might before") {
  std::thread([] {
    std::vector<int> memory(1024), again(1024);
    const std::span<const int> before = allowed_cores(memory);
    REQUIRE_FALSE(before.empty());
    CHECK(move_to_core(before.back()));
    CHECK(std::ranges::equal(allowed_cores(again), before));
  }).join();
}

}  // namespace cpu_placement_test
