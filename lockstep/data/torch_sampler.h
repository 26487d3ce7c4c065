// What torch::data's loaders ask of a sampler, for samplers of ours. sampler -> make_data_loader().
//   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, torch::data::DataLoaderOptions(64));
// The loader has a copy of the sampler; set_epoch() of the program's own is known to it, since copies share the epoch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

// How far a sampler has come.
struct SamplerProgress {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // indices that next() has handed out
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
    position_ = std::exchange(resume_at_, 0);
  }
  std::optional<BatchRequestType> next(std::size_t batch_size) {
    const auto indices = self().indices();
    if (position_ >= indices.size()) return std::nullopt;
    const std::size_t count = std::min(batch_size, indices.size() - position_);
    const auto first = indices.begin() + static_cast<std::ptrdiff_t>(position_);
    position_ += count;
    return BatchRequestType(first, first + static_cast<std::ptrdiff_t>(count));
  }

  // Epoch and position, for torch::save() and torch::load().
  void save(torch::serialize::OutputArchive& archive) const {
    write_progress(archive, {static_cast<const Sampler&>(*this).epoch(), static_cast<std::int64_t>(position_)});
  }
  void load(torch::serialize::InputArchive& archive) {
    const SamplerProgress progress = read_progress(archive, self().size());
    self().set_epoch(progress.epoch);
    position_ = resume_at_ = static_cast<std::size_t>(progress.position);
  }
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

  std::size_t position_ = 0;
  std::size_t resume_at_ = 0;
};

}  // namespace lockstep
