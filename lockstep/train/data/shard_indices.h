// Which positions of a permutation belong to which replica: the arithmetic of a distributed sampler, alone.
// permutation -> shard_indices -> DistributedSampler. Pure functions: no state, no torch, never block. A rank or a
// count outside its range throws Error{invalid_argument}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// What happens when the replicas do not divide the data set.
enum class Padding {
  repeat,  // training: all replicas get equally many, the head of the permutation is repeated at its end
  none,    // evaluation: every index exactly once, so the replicas' lengths differ by at most one
};

enum class ShardLayout {
  strided,     // replica r takes positions r, r + replicas, r + 2 replicas, ...
  contiguous,  // replica r takes one block
};

struct ShardOptions {
  bool drop_last =
      false;  // cut the tail instead of padding, so that all replicas get equally many; excludes Padding::none
  Padding padding = Padding::repeat;
  ShardLayout layout = ShardLayout::strided;
};

// The part of one replica.
struct ShardIndices {
  std::vector<std::int64_t> indices;
  // The first `unique_size` of `indices` are this replica's own; those after them repeat indices of another replica (or
  // of this one), and a metric that must count every sample once leaves them out.
  std::size_t unique_size = 0;
};

ShardIndices shard_indices(std::span<const std::int64_t> permutation, int replicas, int rank,
                           const ShardOptions& options = {});

// shard_indices(...).indices.size(), without the permutation.
std::size_t shard_size(std::size_t dataset_size, int replicas, int rank, const ShardOptions& options = {});

}  // namespace lockstep
