#include "lockstep/train/checkpoint/shard_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/graphs/dice.h"

namespace shard_plan_test {

using namespace lockstep::internal;
using lockstep::testing::Dice;

namespace {

std::uint64_t bytes_of(const std::vector<Shardable>& tensors, const Assignment& each) {
  return tensors[each.tensor].row_bytes * static_cast<std::uint64_t>(each.end_row - each.first_row);
}

std::map<int, std::uint64_t> bytes_by_rank(const std::vector<Shardable>& tensors, const std::vector<Assignment>& plan) {
  std::map<int, std::uint64_t> bytes;
  for (const Assignment& each : plan) bytes[each.rank] += bytes_of(tensors, each);
  return bytes;
}

std::uint64_t largest_row(const std::vector<Shardable>& tensors) {
  std::uint64_t largest = 0;
  for (const Shardable& tensor : tensors) largest = std::max(largest, tensor.row_bytes);
  return largest;
}

std::vector<int> random_nodes(Dice& dice) {
  std::vector<int> nodes(static_cast<std::size_t>(1 + dice.below(20)));
  const int count = 1 + dice.below(5);
  for (int& node : nodes) node = dice.below(count);
  return nodes;
}

std::vector<Shardable> random_tensors(Dice& dice, std::size_t ranks, int percent_owned) {
  std::vector<Shardable> tensors(static_cast<std::size_t>(dice.below(30)));
  for (Shardable& tensor : tensors) {
    tensor.row_bytes = dice.percent(10) ? 0 : std::uint64_t{1} << dice.below(21);
    tensor.rows = dice.percent(10) ? 0 : 1 + dice.below(200);
    if (dice.percent(percent_owned)) tensor.owner = dice.below(static_cast<int>(ranks));
  }
  return tensors;
}

// Every row of every tensor once, in order, and owners' tensors whole.
void check_covers(const std::vector<Shardable>& tensors, const std::vector<Assignment>& plan, std::size_t ranks) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::int64_t row = 0;
    std::size_t pieces = 0;
    std::set<int> writers;
    for (; at < plan.size() && plan[at].tensor == i; ++at, ++pieces) {
      CHECK(plan[at].first_row == row);
      const bool has_rows = plan[at].end_row > row || tensors[i].rows == 0;
      CHECK(has_rows);
      CHECK(writers.insert(plan[at].rank).second);
      CHECK(plan[at].rank >= 0);
      CHECK(static_cast<std::size_t>(plan[at].rank) < ranks);
      row = plan[at].end_row;
    }
    CHECK(row == tensors[i].rows);
    CHECK(pieces >= 1);
    if (tensors[i].owner >= 0) CHECK(writers == std::set<int>{tensors[i].owner});
  }
  CHECK(at == plan.size());
}

}  // namespace

TEST_CASE("every row is written once, by its owner if it has one, and the plan is the same each time") {
  Dice dice(11);
  for (int i = 0; i < 3000; ++i) {
    CAPTURE(i);
    const std::vector<int> nodes = random_nodes(dice);
    const std::vector<Shardable> tensors = random_tensors(dice, nodes.size(), dice.below(100));
    const std::vector<Assignment> plan = plan_shards(tensors, nodes);
    check_covers(tensors, plan, nodes.size());
    const std::vector<Assignment> again = plan_shards(tensors, nodes);
    REQUIRE(again.size() == plan.size());
    for (std::size_t j = 0; j < plan.size(); ++j) {
      CHECK(again[j].tensor == plan[j].tensor);
      CHECK(again[j].rank == plan[j].rank);
      CHECK(again[j].first_row == plan[j].first_row);
      CHECK(again[j].end_row == plan[j].end_row);
    }
  }
}

TEST_CASE("nodes write equally much, and so do the writers of a node, within a row") {
  Dice dice(12);
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    const std::vector<int> nodes = random_nodes(dice);
    const std::vector<Shardable> tensors = random_tensors(dice, nodes.size(), 0);
    std::uint64_t total = 0;
    for (const Shardable& tensor : tensors) total += tensor.row_bytes * static_cast<std::uint64_t>(tensor.rows);
    const auto bytes = bytes_by_rank(tensors, plan_shards(tensors, nodes));
    std::map<int, std::uint64_t> writers_of_node;
    for (const auto& [rank, count] : bytes) writers_of_node[nodes[static_cast<std::size_t>(rank)]] += count != 0;
    const std::size_t most = std::clamp<std::size_t>(total / kLeastShare, 1, nodes.size());
    CHECK(bytes.size() <= most);
    // A share can be less than a row; then there are fewer writers than planned, and no level to compare.
    const std::uint64_t row = largest_row(tensors);
    if (total == 0 || row * most > total / 4) continue;
    CHECK(bytes.size() == most);
    std::map<int, std::uint64_t> by_node;
    for (const auto& [rank, count] : bytes) {
      const int node = nodes[static_cast<std::size_t>(rank)];
      by_node[node] += count;
      const std::uint64_t share = total / writers_of_node.size() / writers_of_node[node];
      CHECK(count + 2 * row >= share);
      CHECK(count <= share + 2 * row);
    }
    for (const auto& [node, count] : by_node) {
      CHECK(count + 2 * row * writers_of_node[node] >= total / writers_of_node.size());
      CHECK(count <= total / writers_of_node.size() + 2 * row * writers_of_node[node]);
    }
  }
}

TEST_CASE("what a rank owns counts to its share") {
  Dice dice(13);
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    const std::vector<int> nodes(static_cast<std::size_t>(2 + dice.below(10)), 0);
    std::vector<Shardable> tensors = random_tensors(dice, nodes.size(), 30);
    tensors.push_back({.row_bytes = 64, .rows = static_cast<std::int64_t>(nodes.size() * kLeastShare / 64)});
    const std::vector<Assignment> plan = plan_shards(tensors, nodes);
    std::map<int, std::uint64_t> shared, all = bytes_by_rank(tensors, plan);
    for (const Assignment& each : plan) {
      if (tensors[each.tensor].owner < 0) shared[each.rank] += bytes_of(tensors, each);
    }
    // Whoever gets some of what is shared ends at one level, and whoever gets nothing owns as much already.
    std::uint64_t level = 0;
    for (const auto& [rank, bytes] : shared) level = std::max(level, all[rank]);
    const std::uint64_t row = largest_row(tensors);
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      CHECK(all[static_cast<int>(rank)] + 2 * row >= level);
    }
  }
}

TEST_CASE("little is written by few ranks, of different nodes") {
  const std::vector<int> nodes = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto ranks = [&](std::uint64_t bytes) {
    std::set<int> found;
    for (const Assignment& each :
         plan_shards(std::vector<Shardable>{{64, static_cast<std::int64_t>(bytes / 64)}}, nodes)) {
      found.insert(each.rank);
    }
    return found;
  };
  CHECK(ranks(64) == std::set<int>{0});
  CHECK(ranks(2 * kLeastShare - 64) == std::set<int>{0});
  CHECK(ranks(2 * kLeastShare) == std::set<int>{0, 4});
  CHECK(ranks(4 * kLeastShare) == std::set<int>{0, 1, 4, 5});
  CHECK(ranks(100 * kLeastShare) == std::set<int>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(plan_shards({}, nodes).empty());
}

TEST_CASE("sizes beyond any memory are planned without overflow") {
  const std::vector<Shardable> tensors = {{.row_bytes = std::uint64_t{1} << 40, .rows = 1 << 20},
                                          {.row_bytes = std::uint64_t{1} << 61, .rows = 1}};
  const std::vector<int> nodes = {0, 1, 2};
  check_covers(tensors, plan_shards(tensors, nodes), nodes.size());
}

}  // namespace shard_plan_test
