// What torch::data's loaders ask of a sampler, for samplers of ours. sampler -> make_data_loader().
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, torch::data::DataLoaderOptions(64));
// The loader has a copy of the sampler. Copies share the epoch, so that it learns of set_epoch() of the program's own,
// and the position, so that torch::save() of the program's own keeps how far the loader has come: the samples that it
// has asked for. With workers it asks ahead of the program, up to max_jobs batches; lockstep::loader() counts the
// batches that the program has been given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/data/loader_plan.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

// How far a sampler has come.
struct SamplerProgress {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // indices that the program has been given in that epoch
};
void write_progress(torch::serialize::OutputArchive& archive, const SamplerProgress& progress);
// Error{invalid_argument} if it is another sampler's archive, or its numbers do not fit one with `size` indices.
SamplerProgress read_progress(torch::serialize::InputArchive& archive, std::size_t size);
// For reset(): a sampler's size follows from its data set and ranks.
void check_new_size(std::optional<std::size_t> wanted, std::size_t dataset_size);

// Sampler: has begin(), indices(), size(), dataset_size(), epoch() and set_epoch().
template <class Sampler>
class TorchSampler {
 public:
  using BatchRequestType = std::vector<std::size_t>;

  // Begins a pass; behind load(), where the saved one stood.
  void reset(std::optional<std::size_t> new_size = std::nullopt) {
    check_new_size(new_size, self().dataset_size());
    self().begin();
    next_ = position_->taken = std::exchange(position_->start, 0);
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

  // Epoch and position, for torch::save() and torch::load().
  void save(torch::serialize::OutputArchive& archive) const {
    const auto taken = static_cast<std::int64_t>(position_->taken);
    write_progress(archive, {static_cast<const Sampler&>(*this).epoch(), taken});
  }
  void load(torch::serialize::InputArchive& archive) {
    const SamplerProgress progress = read_progress(archive, self().size());
    self().set_epoch(progress.epoch);
    next_ = position_->taken = position_->start = static_cast<std::size_t>(progress.position);
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
  // A position belongs to its epoch.
  void enter_epoch(std::int64_t epoch) {
    if (epoch != self().epoch()) *position_ = {};
  }

  std::size_t next_ = 0;  // of this copy
  std::shared_ptr<SamplerPosition> position_ = std::make_shared<SamplerPosition>();
};

}  // namespace lockstep
