#include "lockstep/train/data/shard_sampler.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

void validate(int replicas, int rank, const ShardSamplerOptions& options) {
  if (options.batch_size == 0)
    throw Error(ErrorKind::invalid_argument, "shard sampler: batch_size is 0; give 1 or more");
  if (replicas < 1 || rank < 0 || rank >= replicas) {
    throw Error(ErrorKind::invalid_argument, fmt::format("shard sampler: there is no rank {} of {}", rank, replicas));
  }
  if (options.shards < 0 || options.shards % replicas != 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("shard sampler: shards is {}; for {} ranks it must be 0 or a positive multiple of {}",
                            options.shards, replicas, replicas));
  }
}

}  // namespace

ShardSampler::ShardSampler(internal::DatasetSize dataset, int num_replicas, int rank,
                           const ShardSamplerOptions& options)
    : options_(options) {
  validate(num_replicas, rank, options);
  if (options.shards == 0) options_.shards = num_replicas;
  const int own = options_.shards / num_replicas;
  for (int shard = rank * own; shard < (rank + 1) * own; ++shard) {
    shards_.emplace_back(
        dataset, options_.shards, shard,
        SamplerOptions{.shuffle = options.shuffle, .seed = options.seed, .drop_last = options.drop_last});
  }
  fills_last_ = options.shards != 0;
  const std::size_t samples = shards_.front().size();
  steps_ = (options.drop_last ? samples : samples + options.batch_size - 1) / options.batch_size;
}

void ShardSampler::set_epoch(std::int64_t epoch) {
  enter_epoch(epoch);
  for (DistributedSampler& shard : shards_) shard.set_epoch(epoch);
}

std::string ShardSampler::describe() const {
  const std::string parts =
      fills_last_ ? fmt::format("{} shards", options_.shards) : fmt::format("{} parts, one a rank", options_.shards);
  return fmt::format("{} samples in {}, {} a batch, {}{}{}", dataset_size(), parts, batch_size(),
                     options_.shuffle ? fmt::format("shuffled with seed {}", options_.seed) : "not shuffled",
                     options_.drop_last ? ", without the last ones (drop_last)" : "",
                     fills_last_ ? "" : ", the last batch as it is");
}

std::size_t ShardSampler::size() const {
  const std::size_t full = steps_ * own_shards() * batch_size();
  return fills_last_ ? full : std::min(full, shards_.front().size());
}

std::span<const std::int64_t>::iterator ShardSampler::begin() {
  shards_.front().begin();  // which warns of an epoch that is iterated twice
  order_.clear();
  order_.reserve(size());
  if (!fills_last_) {
    const auto samples = shards_.front().indices().first(size());
    order_.assign(samples.begin(), samples.end());
    return indices().begin();
  }
  for (std::size_t step = 0; step < steps_; ++step) {
    for (DistributedSampler& shard : shards_) {
      const auto samples = shard.indices();
      for (std::size_t i = step * batch_size(); i < (step + 1) * batch_size(); ++i) {
        order_.push_back(samples[i % samples.size()]);
      }
    }
  }
  return indices().begin();
}

}  // namespace lockstep
