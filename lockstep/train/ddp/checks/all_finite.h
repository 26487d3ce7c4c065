// Whether tensors hold NaN or Inf. Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::internal {

// On any device; true for types that know neither. Reads the tensor once. REQUIRES: dense.
bool all_finite(const at::Tensor& tensor);

// The first of several tensors that is not finite. Devices look at theirs without the host, which asks for all results
// at once. One thread at a time.
class FiniteCheck {
 public:
  // The tensor as it is now, or on a device when what is queued so far is done.
  void add(const at::Tensor& values, std::size_t index);
  // Whether one is known that is not, without asking a device.
  bool has_found() const { return found_.has_value(); }
  void clear();

  // The index that was added with the first that is not finite, of both checks; nothing if all are. The host waits for
  // devices once, if they have looked at any.
  using First = std::optional<std::size_t>;
  static std::pair<First, First> ask(const FiniteCheck& one, const FiniteCheck& other);

 private:
  std::optional<std::size_t> found_;
  std::vector<std::size_t> indices_;  // of those on devices
  std::vector<at::Tensor> answers_;   // theirs: a bool each, on one device
};

}  // namespace lockstep::internal
