// The batch in the arguments of a module's forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace lockstep::internal {

// The first tensor among them; null if there is none.
inline const at::Tensor* first_tensor() { return nullptr; }
template <class First, class... Others>
const at::Tensor* first_tensor(const First& first, const Others&... others) {
  if constexpr (std::is_convertible_v<const First&, const at::Tensor&>) {
    return &static_cast<const at::Tensor&>(first);
  } else {
    return first_tensor(others...);
  }
}

// The number of samples of a batch that is no tensor, if it comes before the first tensor: a list of tensors, or
// torch::nn::utils::rnn::PackedSequence.
inline std::optional<double> samples_of() { return {}; }
template <class First, class... Others>
std::optional<double> samples_of(const First& first, const Others&... others) {
  if constexpr (std::is_convertible_v<const First&, const at::Tensor&>) {
    return {};
  } else if constexpr (requires { first.batch_sizes().size(0); }) {
    return static_cast<double>(first.batch_sizes()[0].template item<std::int64_t>());
  } else if constexpr (requires { first.front().size(0); }) {
    if (first.empty() || !first.front().defined() || first.front().dim() == 0) return {};
    return static_cast<double>(first.front().size(0));
  } else {
    return samples_of(others...);
  }
}

}  // namespace lockstep::internal
