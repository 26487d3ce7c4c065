// The results of shards, and their mean in one fixed binary tree over shards: the arithmetic of lockstep mode.
// shards -> ShardTree (within a rank) -> agree(), average_over_ranks() -> ShardedStep.
// Every node of the tree is (left + right) / 2 in the tensor's own type, wherever it is computed; so the root has the
// same bits for any number of ranks. Thread rule: as ShardedStep, whose parts these are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

struct ShardResult {
  double loss = 0;
  // Dense, each with its own memory, which the tree writes to; at the same position with the same strides in every
  // result; undefined where a shard has none.
  std::vector<at::Tensor> tensors = {};
  // Hashes of values that must be equal after every shard.
  std::vector<std::uint64_t> hashes = {};
  int conflict = -1;  // the first hash that was not
};

// The value of a tensor that is undefined in this result, but not in another one. tensor: its index.
using NeutralElement = std::function<at::Tensor(std::size_t tensor)>;

// Takes the results of consecutive shards one by one. Keeps at most one result of each height of the tree.
class ShardTree {
 public:
  explicit ShardTree(NeutralElement neutral_element) : neutral_element_(std::move(neutral_element)) {}

  void add(ShardResult shard);
  // The mean of all. REQUIRES: a power of two of them.
  ShardResult take();

 private:
  NeutralElement neutral_element_;
  std::vector<std::optional<ShardResult>> heights_;
};

// At the end of a step ranks compare the results of their shards, so that all handle them equally. Afterwards mine.loss
// is the mean over all ranks, and tensors that some rank has are defined on all of them. Returns the first hash, by its
// place, that was not the same after all shards. Error{desync} if ranks are at different steps, or make one of
// different wrappers. Collective; blocks.
std::optional<std::size_t> agree(ShardResult& mine, std::uint64_t step, const NeutralElement& neutral_element,
                                 const ProcessGroup& group, std::uint64_t wrapper);

// The tree goes on over the ranks, in place. Defined tensors only, the same ones on all ranks. Blocks; fails as
// ProcessGroup::all_reduce.
void average_over_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group);

}  // namespace lockstep::internal
