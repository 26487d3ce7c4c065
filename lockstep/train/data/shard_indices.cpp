#include "lockstep/train/data/shard_indices.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

void validate(int replicas, int rank, const ShardOptions& options) {
  if (replicas < 1) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("sampler: the number of replicas is {}; it must be at least 1", replicas));
  }
  if (rank < 0 || rank >= replicas) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("sampler: rank {} is outside the interval [0, {}]", rank, replicas - 1));
  }
  if (options.drop_last && options.padding == Padding::none) {
    throw Error(ErrorKind::invalid_argument,
                "sampler: drop_last cuts samples that Padding::none promises to yield; choose one of them");
  }
}

// The positions of one replica in the permutation, which is thought of as repeating without end.
struct Positions {
  std::size_t first;
  std::size_t step;
  std::size_t count;
};

Positions positions_of(std::size_t size, int replicas, int rank, const ShardOptions& options) {
  const auto n = static_cast<std::size_t>(replicas);
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t floor = size / n;
  const std::size_t rest = size % n;
  std::size_t count = floor;
  if (!options.drop_last && options.padding == Padding::repeat) count += rest > 0 ? 1 : 0;
  if (options.padding == Padding::none) count += r < rest ? 1 : 0;
  if (options.layout == ShardLayout::strided) return {r, n, count};
  const std::size_t first = options.padding == Padding::none ? r * floor + std::min(r, rest) : r * count;
  return {first, 1, count};
}

}  // namespace

ShardIndices shard_indices(std::span<const std::int64_t> permutation, int replicas, int rank,
                           const ShardOptions& options) {
  validate(replicas, rank, options);
  const Positions positions = positions_of(permutation.size(), replicas, rank, options);
  ShardIndices shard;
  shard.indices.reserve(positions.count);
  for (std::size_t i = 0; i < positions.count; ++i) {
    const std::size_t position = positions.first + i * positions.step;
    if (position < permutation.size()) ++shard.unique_size;
    shard.indices.push_back(permutation[position % permutation.size()]);
  }
  return shard;
}

std::size_t shard_size(std::size_t dataset_size, int replicas, int rank, const ShardOptions& options) {
  validate(replicas, rank, options);
  return positions_of(dataset_size, replicas, rank, options).count;
}

}  // namespace lockstep
