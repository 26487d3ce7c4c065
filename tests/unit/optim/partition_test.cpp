#include "lockstep/train/optim/partition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace partition_test {

using namespace lockstep::internal;

TEST_CASE("each parameter goes to the rank with the fewest elements, the largest first") {
  // 100 to rank 0; 60 and, since 60 < 100, 50 to rank 1; 10 to rank 0, which has 110 then, as rank 1 has; 5 to the
  // first.
  const auto parts = partition_parameters({{10, 100, 50, 60, 5}}, 2);
  CHECK(parts == std::vector<Part>{{{1, 0, 4}}, {{3, 2}}});
}

TEST_CASE("equal sizes keep their order, and equal loads go to the lowest rank") {
  CHECK(partition_parameters({{7, 7, 7, 7}}, 3) == std::vector<Part>{{{0, 3}}, {{1}}, {{2}}});
}

TEST_CASE("loads go on from group to group, and what came first keeps its owner") {
  const std::vector<std::vector<std::int64_t>> one{{9, 4}}, two{{9, 4}, {3, 3}};
  const auto before = partition_parameters(one, 2), after = partition_parameters(two, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) CHECK(before[rank][0] == after[rank][0]);
  CHECK(after == std::vector<Part>{{{0}, {}}, {{1}, {0, 1}}});
}

TEST_CASE("every parameter has one owner, and no rank has more than another by more than the largest") {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::vector<std::int64_t>> elements(3);
    for (std::int64_t i = 0; i < 40; ++i) elements[static_cast<std::size_t>(i % 3)].push_back(i * i % 97);
    const auto parts = partition_parameters(elements, ranks);
    REQUIRE(parts.size() == static_cast<std::size_t>(ranks));
    std::set<std::pair<std::size_t, std::size_t>> owned;
    std::vector<std::int64_t> load;
    for (const Part& part : parts) {
      load.push_back(0);
      for (std::size_t group = 0; group < part.size(); ++group) {
        for (const std::size_t index : part[group]) {
          CHECK(owned.emplace(group, index).second);
          load.back() += elements[group][index];
        }
      }
    }
    CHECK(owned.size() == 40);
    CHECK(*std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()) <= 96);
  }
}

}  // namespace partition_test
