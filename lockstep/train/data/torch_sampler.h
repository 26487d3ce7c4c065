// The interface of samplers for torch::data's loaders, for Lockstep's samplers. sampler -> make_data_loader().
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, torch::data::DataLoaderOptions(64));
// The loader has a copy of the sampler. Copies share the epoch, so that set_epoch() of the program's copy reaches it,
// and the position, so that torch::save() of that copy stores the loader's progress: the samples that it has requested.
// With workers it requests ahead of the program, up to max_jobs batches; lockstep::loader() counts the batches that the
// program has been given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/data/loader_plan.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

// The progress of a sampler.
struct SamplerProgress {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // indices that the program has been given in that epoch
  std::int64_t size = 0;      // indices of an epoch
  std::string order;          // describe()
  std::int64_t pass = 0;      // of that epoch, that the position is in
  std::int64_t steps = 0;     // of an epoch, where ranks of any number take the same samples in each; 0: they do not
};
void write_progress(torch::serialize::OutputArchive& archive, const SamplerProgress& progress);  // for save()
// mine: of the sampler that loads it. One with another order can go on between two epochs, one of shards for another
// number of ranks between two steps; Error{invalid_argument} if the archive's is in the middle of one, or the archive
// is of something else.
SamplerProgress read_progress(torch::serialize::InputArchive& archive, const SamplerProgress& mine);
// For reset(): a sampler's size follows from its data set and ranks.
void check_new_size(std::optional<std::size_t> wanted, std::size_t dataset_size);

// Sampler: has begin(), indices(), size(), dataset_size(), epoch(), set_epoch(), and describe(): all that its order
// depends on besides the epoch.
template <class Sampler>
class TorchSampler {
 public:
  using BatchRequestType = std::vector<std::size_t>;

  // Begins a pass; after load(), at the saved position.
  void reset(std::optional<std::size_t> new_size = std::nullopt) {
    check_new_size(new_size, self().dataset_size());
    self().begin();
    next_ = position_->taken = std::exchange(position_->start, 0);
    ++position_->passes;
  }
  std::optional<BatchRequestType> next(std::size_t batch_size) {
    const auto indices = self().indices();
    if (next_ >= indices.size()) return std::nullopt;
    const std::size_t count = std::min(batch_size, indices.size() - next_);
    const auto first = indices.begin() + static_cast<std::ptrdiff_t>(next_);
    next_ += count;
    position_->taken = next_;
    return BatchRequestType(first, first + static_cast<std::ptrdiff_t>(count));
  }

  // Epoch and position, for torch::save() and torch::load(). In the middle of an epoch load() is for the same order:
  // data set, number of ranks (of a ShardSampler with shards: any), options; between two epochs also for another.
  // Error{invalid_argument} shows both orders.
  void save(torch::serialize::OutputArchive& archive) const { write_progress(archive, progress()); }
  void load(torch::serialize::InputArchive& archive) {
    const SamplerProgress loaded = read_progress(archive, progress());
    self().set_epoch(loaded.epoch);
    next_ = position_->taken = position_->start = static_cast<std::size_t>(loaded.position);
    position_->passes = static_cast<std::uint64_t>(loaded.pass);
  }
  const std::shared_ptr<SamplerPosition>& position() const { return position_; }
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Sampler& sampler) {
    sampler.save(archive);
    return archive;
  }
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, Sampler& sampler) {
    sampler.load(archive);
    return archive;
  }

 private:
  friend Sampler;
  TorchSampler() = default;
  Sampler& self() { return static_cast<Sampler&>(*this); }
  const Sampler& self() const { return static_cast<const Sampler&>(*this); }
  SamplerProgress progress() const {
    SamplerProgress mine{.epoch = self().epoch(),
                         .position = static_cast<std::int64_t>(position_->taken),
                         .size = static_cast<std::int64_t>(self().size()),
                         .order = self().describe(),
                         .pass = static_cast<std::int64_t>(std::max<std::uint64_t>(position_->passes, 1) - 1)};
    if constexpr (requires { self().steps_of_any_ranks(); }) mine.steps = self().steps_of_any_ranks();
    return mine;
  }
  // A position belongs to its epoch.
  void enter_epoch(std::int64_t epoch) {
    if (epoch != self().epoch()) *position_ = {};
  }

  std::size_t next_ = 0;  // of this copy
  std::shared_ptr<SamplerPosition> position_ = std::make_shared<SamplerPosition>();
};

}  // namespace lockstep
