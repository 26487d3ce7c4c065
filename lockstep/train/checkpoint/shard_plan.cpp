#include "lockstep/train/checkpoint/shard_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace lockstep::internal {
namespace {

std::uint64_t bytes_of(const Shardable& tensor) { return tensor.row_bytes * static_cast<std::uint64_t>(tensor.rows); }

// One rank after the other from each node, so that the first few ranks are of different nodes.
std::vector<int> spread_over_nodes(std::span<const int> nodes) {
  std::map<int, int> seen;
  std::vector<std::pair<int, int>> order;  // how many of its node come before it; rank
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    order.emplace_back(seen[nodes[rank]]++, static_cast<int>(rank));
  }
  std::ranges::stable_sort(order, {}, &std::pair<int, int>::first);
  std::vector<int> ranks;
  for (const auto& [place, rank] : order) ranks.push_back(rank);
  return ranks;
}

// How much of `total` each writer takes, so that, with its own bytes, all that can reach level * weight.
std::vector<std::uint64_t> shares(std::uint64_t total, const std::vector<double>& weights,
                                  const std::vector<std::uint64_t>& owned) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto full_at = [&](std::size_t i) { return static_cast<double>(owned[i]) / weights[i]; };
  std::ranges::sort(order, {}, full_at);
  double weight = 0, level = 0;
  double filled = static_cast<double>(total);
  for (const std::size_t i : order) {
    if (weight != 0 && full_at(i) >= level) break;
    weight += weights[i];
    filled += static_cast<double>(owned[i]);
    level = filled / weight;
  }
  std::vector<std::uint64_t> result;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    result.push_back(static_cast<std::uint64_t>(std::max(0.0, level * weights[i] - static_cast<double>(owned[i]))));
  }
  return result;
}

}  // namespace

std::vector<Assignment> plan_shards(std::span<const Shardable> tensors, std::span<const int> nodes) {
  std::uint64_t total = 0;
  std::vector<std::uint64_t> owned(nodes.size());
  for (const Shardable& tensor : tensors) {
    if (tensor.owner < 0) {
      total += bytes_of(tensor);
    } else {
      owned[static_cast<std::size_t>(tensor.owner)] += bytes_of(tensor);
    }
  }
  std::vector<int> writers = spread_over_nodes(nodes);
  writers.resize(std::clamp<std::size_t>(total / kLeastShare, 1, writers.size()));
  std::map<int, int> of_node;
  for (const int rank : writers) ++of_node[nodes[static_cast<std::size_t>(rank)]];
  std::vector<double> weights;
  std::vector<std::uint64_t> own;
  for (const int rank : writers) {
    weights.push_back(1.0 / of_node[nodes[static_cast<std::size_t>(rank)]]);
    own.push_back(owned[static_cast<std::size_t>(rank)]);
  }
  const std::vector<std::uint64_t> share = shares(total, weights, own);

  std::vector<Assignment> plan;
  std::size_t writer = 0;
  std::uint64_t end = share[0];  // of the present writer's share
  std::uint64_t at = 0;          // in the line
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Shardable& tensor = tensors[i];
    if (tensor.owner >= 0) {
      plan.push_back({.tensor = i, .rank = tensor.owner, .first_row = 0, .end_row = tensor.rows});
      continue;
    }
    std::int64_t row = 0;
    do {
      std::uint64_t fitting = 0;  // rows, rounded, so that each writer ends at the row next to its share's end
      while (writer + 1 < writers.size()) {
        if (at < end && tensor.row_bytes == 0) break;
        if (at < end) fitting = (end - at + tensor.row_bytes / 2) / tensor.row_bytes;
        if (fitting != 0) break;
        end += share[++writer];
      }
      std::int64_t rows = tensor.rows - row;
      if (fitting != 0) rows = static_cast<std::int64_t>(std::min(fitting, static_cast<std::uint64_t>(rows)));
      plan.push_back({.tensor = i, .rank = writers[writer], .first_row = row, .end_row = row + rows});
      row += rows;
      at += static_cast<std::uint64_t>(rows) * tensor.row_bytes;
    } while (row < tensor.rows);
  }
  return plan;
}

}  // namespace lockstep::internal
