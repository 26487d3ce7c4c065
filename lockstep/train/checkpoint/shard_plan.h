// Which rank writes which part of a checkpoint. Replicated tensors form one sequence of bytes, which is cut between
// rows into shares: equal ones for all nodes, and for all ranks of a node. State that only one rank has is part of its
// share. sizes -> plan, the same on all ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal {

struct Shardable {
  std::uint64_t row_bytes = 0;
  std::int64_t rows = 0;
  int owner = -1;  // the only rank that has it; -1: all have it
};

struct Assignment {
  std::size_t tensor = 0;  // its index
  int rank = 0;
  std::int64_t first_row = 0;
  std::int64_t end_row = 0;
};

// So few ranks write that each has about kLeastShare: another file costs more than it saves.
inline constexpr std::uint64_t kLeastShare = 4 << 20;

// nodes: of each rank, the number of its node. In the order of tensors, then of rows.
std::vector<Assignment> plan_shards(std::span<const Shardable> tensors, std::span<const int> nodes);

}  // namespace lockstep::internal
