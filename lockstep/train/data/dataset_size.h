// The number of samples of a dataset of ours or of torch::data.
#pragma once

#include <cstddef>
#include <optional>

namespace lockstep::internal {

[[noreturn]] void throw_unknown_size();  // Error{invalid_argument}

// An argument: the number itself, as torch::data's datasets return it, or a dataset. Error{invalid_argument} if that
// does not know its size.
class DatasetSize {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  DatasetSize(std::size_t samples) : samples_(samples) {}
  DatasetSize(std::optional<std::size_t> samples) : samples_(samples ? *samples : (throw_unknown_size(), 0)) {}
  template <class Dataset>
    requires requires(const Dataset& dataset) { DatasetSize(dataset.size()); }
  DatasetSize(const Dataset& dataset) : DatasetSize(dataset.size()) {}

  operator std::size_t() const { return samples_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  std::size_t samples_;
};

}  // namespace lockstep::internal
