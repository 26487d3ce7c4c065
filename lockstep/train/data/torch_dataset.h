// TorchDataset adapts a dataset of torch::data to lockstep::loader(): any of libtorch's, any of the program's that
// derives from torch::data::datasets::Dataset, and results of map() (Stack, Normalize).
//   auto train = torch::data::datasets::MNIST(folder).map(torch::data::transforms::Stack<>());
//   for (auto& [x, y] : lockstep::loader(train, sampler, {.batch_size = 64})) ...
// Their get_batch() may change them, so each thread that calls it has its own copy, as in torch::data's loaders.
// Thread-safe.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

// Returns the samples of a list of indices, and need not have a size. Streams and chunks, which choose samples
// themselves, do not qualify.
template <class T>
concept TorchBatchDataset =
    std::copy_constructible<T> && requires(T& dataset, const std::vector<std::size_t>& indices) {
      typename T::BatchType;
      typename T::BatchRequestType;
      { dataset.get_batch(indices) } -> std::same_as<typename T::BatchType>;
      { dataset.size().has_value() } -> std::convertible_to<bool>;
    };

template <TorchBatchDataset Dataset>
class TorchDataset {
 public:
  // Refers to the dataset, which must outlive it.
  explicit TorchDataset(const Dataset& dataset) : original_(dataset) {}

  // The largest size if the dataset has none: the sampler has one.
  std::size_t size() const {
    const auto size = original_.size();
    return size.has_value() ? *size : std::numeric_limits<std::int64_t>::max();
  }

  typename Dataset::BatchType get_batch(std::span<const std::int64_t> indices) const {
    const std::vector<std::size_t> request(indices.begin(), indices.end());
    std::unique_ptr<Dataset> copy = take();
    typename Dataset::BatchType batch = copy->get_batch(request);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(copy));
    return batch;
  }

 private:
  std::unique_ptr<Dataset> take() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Dataset> copy = std::move(idle_.back());
        idle_.pop_back();
        return copy;
      }
    }
    return std::make_unique<Dataset>(original_);
  }

  const Dataset& original_;
  mutable std::mutex mutex_;
  // Protected by mutex_: copies that no thread uses now.
  mutable std::vector<std::unique_ptr<Dataset>> idle_;
};

}  // namespace lockstep
