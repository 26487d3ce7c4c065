// ShardSampler gives every rank the samples of the shards that it computes in lockstep mode
// (ddp/lockstep_mode/sharded_step.h), in the order in which it computes them: the same samples belong to the same shard
// of the same step at any number of ranks. (size, shards, rank, epoch) -> indices -> shard_loader.
//   lockstep::ShardSampler sampler(train.size(), world, {.shards = 8, .batch_size = 16});
//   for (auto& [x, y] : lockstep::shard_loader(train, sampler)) ...          one batch a shard
// Nothing is communicated. Not thread-safe; does not block. Error{invalid_argument}: a number of shards that is
// not a multiple of the number of ranks, a batch size of 0, a rank outside the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/train/data/dataset_size.h"
#include "lockstep/train/data/distributed_sampler.h"
#include "lockstep/train/data/loader.h"

namespace lockstep {

struct ShardSamplerOptions {
  // Over all ranks, as in LockstepMode. 0: that mode is off, every rank has its part, as a DistributedSampler gives it,
  // for a single shard, and the last batch may be smaller.
  int shards = 1;
  std::size_t batch_size = 1;  // of a shard
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  // Leave out samples that do not fill the last step; otherwise it is filled with repeated samples.
  bool drop_last = false;
};

class ShardSampler : public TorchSampler<ShardSampler> {
 public:
  ShardSampler(internal::DatasetSize dataset, int num_replicas, int rank, const ShardSamplerOptions& options);
  template <RankAndSize Group>
  ShardSampler(internal::DatasetSize dataset, const Group& group, const ShardSamplerOptions& options)
      : ShardSampler(dataset, group.size(), group.rank(), options) {}

  // Call before each epoch, as for a DistributedSampler.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return shards_.front().epoch(); }
  std::uint64_t seed() const { return options_.seed; }
  std::size_t dataset_size() const { return shards_.front().dataset_size(); }

  std::size_t batch_size() const { return options_.batch_size; }
  std::size_t steps() const { return steps_; }               // of an epoch, the same at any number of ranks
  std::size_t own_shards() const { return shards_.size(); }  // that this rank computes in each step

  // "100 samples in 8 shards, 3 a batch, shuffled with seed 1": all that a step's batches depend on besides epoch.
  std::string describe() const;

  // The batches of its shards in the first step, one after the other, then those of the second, and so on.
  std::size_t size() const;
  std::span<const std::int64_t>::iterator begin();
  std::span<const std::int64_t>::iterator end() { return indices().end(); }
  std::span<const std::int64_t> indices() const { return order_; }  // of the newest pass

 private:
  friend TorchSampler<ShardSampler>;
  std::int64_t steps_of_any_ranks() const { return fills_last_ ? static_cast<std::int64_t>(steps_) : 0; }

  ShardSamplerOptions options_;
  std::vector<DistributedSampler> shards_;  // for as many replicas as there are shards
  std::size_t steps_;
  bool fills_last_ = true;
  std::vector<std::int64_t> order_;
};

// As loader(), with the sampler's batch size; first_batch counts steps.
template <class Dataset>
auto shard_loader(const Dataset& dataset, ShardSampler& sampler, LoaderOptions options = {}) {
  options.batch_size = sampler.batch_size();
  options.first_batch *= static_cast<std::int64_t>(sampler.own_shards());
  return loader(dataset, sampler, options);
}
template <class Dataset>
void shard_loader(const Dataset&& dataset, ShardSampler& sampler, LoaderOptions options = {}) = delete;

}  // namespace lockstep
