// DistributedSampler gives every rank its part of a data set, shuffled again each epoch. (size, rank, epoch) -> indices
// -> loader. The same indices as PyTorch's DistributedSampler yields for the same seed and epoch.
// Every rank computes the same permutation from seed + epoch: nothing is communicated. Host memory only. It fits
// lockstep::loader() and torch::data::make_data_loader(). Copies share epoch and position, from which a run resumes:
// they are in the base, TorchSampler (torch_sampler.h: save(), load(), SamplerProgress).
// Not thread-safe; does not block. Error{invalid_argument}: a rank outside [0, replicas - 1], contradictory options.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/train/data/dataset_size.h"
#include "lockstep/train/data/shard_indices.h"
#include "lockstep/train/data/torch_sampler.h"

namespace lockstep {

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  bool drop_last = false;
  Padding padding = Padding::repeat;
  ShardLayout layout = ShardLayout::strided;
};

// A World or a process group: any type with a rank and a size.
template <class T>
concept RankAndSize = requires(const T& group) {
  { group.rank() } -> std::convertible_to<int>;
  { group.size() } -> std::convertible_to<int>;
};

class DistributedSampler : public TorchSampler<DistributedSampler> {
 public:
  // dataset: or its size(), also as torch::data has it.
  DistributedSampler(internal::DatasetSize dataset, int num_replicas, int rank, const SamplerOptions& options = {});
  template <RankAndSize Group>
  DistributedSampler(internal::DatasetSize dataset, const Group& group, const SamplerOptions& options = {})
      : DistributedSampler(dataset, group.size(), group.rank(), options) {}

  // Call before each epoch. Without it a shuffled sampler repeats the same order, and logs a warning once.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_->number; }

  std::uint64_t seed() const { return options_.seed; }
  std::size_t dataset_size() const { return dataset_size_; }
  int num_replicas() const { return replicas_; }
  int rank() const { return rank_; }
  const SamplerOptions& options() const { return options_; }
  // "100 samples for 4 ranks, shuffled with seed 1, strided, padded": all that indices() depend on besides rank and
  // epoch.
  std::string describe() const;
  // How many indices this rank yields, in every epoch.
  std::size_t size() const { return size_; }
  // This rank's indices in this epoch. Valid until set_epoch().
  std::span<const std::int64_t> indices();
  // How many of indices(), from the start, are not padding. For a metric that must count each sample once.
  std::size_t unique_size();

  // One pass over indices(). begin() counts passes.
  std::span<const std::int64_t>::iterator begin();
  std::span<const std::int64_t>::iterator end() { return indices().end(); }

 private:
  struct Epoch {
    std::int64_t number = 0;
    std::uint64_t set = 0;  // how often
  };

  std::size_t dataset_size_;
  int replicas_;
  int rank_;
  SamplerOptions options_;
  std::size_t size_;
  std::shared_ptr<Epoch> epoch_ = std::make_shared<Epoch>();
  ShardIndices shard_;
  bool has_shard_ = false;
  std::int64_t shard_epoch_ = 0;                   // the epoch of shard_
  std::optional<std::uint64_t> iterated_setting_;  // Epoch::set when the newest pass began
  bool repetition_was_reported_ = false;
};

}  // namespace lockstep
