#include "lockstep/train/data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <numeric>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"

namespace lockstep {

using namespace internal;

namespace {

ShardOptions shard_options(const SamplerOptions& options) {
  return {.drop_last = options.drop_last, .padding = options.padding, .layout = options.layout};
}

ShardIndices shuffled_shard(std::size_t dataset_size, int replicas, int rank, std::uint64_t seed,
                            const ShardOptions& options) {
  const at::Tensor permutation =
      at::randperm(static_cast<std::int64_t>(dataset_size), at::make_generator<at::CPUGeneratorImpl>(seed),
                   at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  return shard_indices({permutation.const_data_ptr<std::int64_t>(), dataset_size}, replicas, rank, options);
}

ShardIndices ordered_shard(std::size_t dataset_size, int replicas, int rank, const ShardOptions& options) {
  std::vector<std::int64_t> order(dataset_size);
  std::iota(order.begin(), order.end(), 0);
  return shard_indices(order, replicas, rank, options);
}

}  // namespace

DistributedSampler::DistributedSampler(DatasetSize dataset, int num_replicas, int rank, const SamplerOptions& options)
    : dataset_size_(dataset),
      replicas_(num_replicas),
      rank_(rank),
      options_(options),
      size_(shard_size(dataset, num_replicas, rank, shard_options(options))) {}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  enter_epoch(epoch);
  epoch_->number = epoch;
  ++epoch_->set;
}

std::string DistributedSampler::describe() const {
  return fmt::format("{} samples for {} ranks, {}, {}, {}{}", dataset_size_, replicas_,
                     options_.shuffle ? fmt::format("shuffled with seed {}", options_.seed) : "not shuffled",
                     options_.layout == ShardLayout::strided ? "strided" : "contiguous",
                     options_.padding == Padding::repeat ? "padded" : "not padded",
                     options_.drop_last ? ", without the last ones (drop_last)" : "");
}

std::span<const std::int64_t> DistributedSampler::indices() {
  const bool is_current = has_shard_ && (shard_epoch_ == epoch() || !options_.shuffle);
  if (!is_current) {
    const ShardOptions options = shard_options(options_);
    const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(epoch());
    shard_ = options_.shuffle ? shuffled_shard(dataset_size_, replicas_, rank_, seed, options)
                              : ordered_shard(dataset_size_, replicas_, rank_, options);
    shard_epoch_ = epoch();
    has_shard_ = true;
  }
  return shard_.indices;
}

std::size_t DistributedSampler::unique_size() {
  indices();
  return shard_.unique_size;
}

std::span<const std::int64_t>::iterator DistributedSampler::begin() {
  if (iterated_setting_ == epoch_->set && options_.shuffle && !repetition_was_reported_) {
    log_warning(
        fmt::format("the sampler goes through epoch {} again, in the same order: call set_epoch(epoch) before "
                    "each epoch, or the data is shuffled only once",
                    epoch()));
    repetition_was_reported_ = true;
  }
  iterated_setting_ = epoch_->set;
  return indices().begin();
}

}  // namespace lockstep
