#include "lockstep/ddp/value_broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace lockstep {
namespace {

// Whether the tensor's memory, from front to back, is its values.
bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

// The bytes of a tensor with plain memory, in the order in which they lie.
at::Tensor view_of_bytes(const at::Tensor& plain) {
  return plain.detach().as_strided({plain.numel()}, {1}).view(at::kByte);
}

bool is_view_of(const at::Tensor& bytes, const at::Tensor& tensor) {
  return bytes.defined() && bytes.nbytes() == tensor.nbytes() && bytes.const_data_ptr() == tensor.const_data_ptr();
}

}  // namespace

ValueBroadcast::ValueBroadcast(std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)), bytes_(tensors_.size()) {}

void ValueBroadcast::run(int root, const ProcessGroup& group, std::string_view name) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& tensor = tensors_[i];
    if (!is_plain_memory(tensor)) {
      bytes_[i] = view_of_bytes(at::empty_like(tensor, {}, at::MemoryFormat::Contiguous).copy_(tensor));
    } else if (!is_view_of(bytes_[i], tensor)) {
      bytes_[i] = view_of_bytes(tensor);
    }
  }
  if (!bytes_.empty()) group.broadcast(bytes_, root, {.name = name});
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& tensor = tensors_[i];
    if (!is_plain_memory(tensor)) tensor.copy_(bytes_[i].view(tensor.scalar_type()).view(tensor.sizes()));
  }
}

}  // namespace lockstep
