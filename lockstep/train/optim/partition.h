// Which rank updates which parameter. sizes -> owners. Pure: all ranks compute the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::internal {

// Of one rank: for each parameter group, the indices of its parameters, the largest first.
using Part = std::vector<std::vector<std::size_t>>;

// Parameters go, group by group and the largest first, each to the rank that has the fewest elements so far, the lowest
// one of several. PyTorch's ZeroRedundancyOptimizer divides them in the same way.
// elements: of each parameter of each group. Returns one part for each rank.
std::vector<Part> partition_parameters(const std::vector<std::vector<std::int64_t>>& elements, int ranks);

}  // namespace lockstep::internal
