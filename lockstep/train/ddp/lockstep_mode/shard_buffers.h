// The buffers of a model in lockstep mode. Every shard begins a step with their values before it. Of the shards'
// results, floating-point ones are averaged; all others must be equal. Belongs to the thread of ShardedStep.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/train/ddp/checks/model_comparison.h"
#include "lockstep/train/ddp/lockstep_mode/shard_tree.h"

namespace lockstep::internal {

class ShardBuffers {
 public:
  // Leaves out those that cannot be written to.
  explicit ShardBuffers(const NamedTensors& buffers);

  // Keeps their values before a step.
  void begin_step();
  // A shard has ended: adds its changes, averaged ones to result.tensors, hashes of others to result.hashes.
  void collect(ShardResult& result);
  // Restores the values before the step of those that the last collect() found changed.
  void restore_changed();
  void restore_all();
  // The step is over. means: of the averaged ones; undefined for one that no shard has changed.
  void take_means(std::span<const at::Tensor> means);

  // For shards that compute by turns: values of all of them, at first those before the step.
  std::vector<at::Tensor> values_before() const;
  void load(const std::vector<at::Tensor>& values) const;
  void save(std::vector<at::Tensor>& values) const;

  std::size_t averaged() const { return averaged_; }
  // The contribution to the mean of an averaged one by a shard that has not changed it.
  at::Tensor neutral_element(std::size_t averaged) const { return buffers_[averaged].before.clone(); }
  // Shards have left different values in a buffer that cannot be averaged. hash: its place in ShardResult::hashes.
  Error conflict_error(std::size_t hash) const;

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    at::Tensor before;  // the step
    bool is_changed = false;
  };
  std::vector<Buffer> buffers_;  // averaged ones first
  std::size_t averaged_ = 0;     // how many are
};

}  // namespace lockstep::internal
