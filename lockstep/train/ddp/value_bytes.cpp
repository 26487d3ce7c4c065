#include "lockstep/train/ddp/value_bytes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "lockstep/comm/group/sole_owner.h"

namespace lockstep::internal {
namespace {

// REQUIRES: has_plain_memory().
at::Tensor view_of_bytes(const at::Tensor& plain) { return flat(plain.detach()).view(at::kByte); }

bool is_view_of(const at::Tensor& bytes, const at::Tensor& tensor) {
  return bytes.defined() && bytes.nbytes() == tensor.nbytes() && bytes.const_data_ptr() == tensor.const_data_ptr();
}

}  // namespace

ValueBytes::ValueBytes(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)), bytes_(tensors_.size()) {}

void ValueBytes::read() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& tensor = tensors_[i];
    if (!has_plain_memory(tensor)) {
      bytes_[i] = view_of_bytes(at::empty_like(tensor, {}, at::MemoryFormat::Contiguous).copy_(tensor));
    } else if (!is_view_of(bytes_[i], tensor)) {
      bytes_[i] = view_of_bytes(tensor);
    }
  }
}

void ValueBytes::write_back() const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor& tensor = tensors_[i];
    if (!has_plain_memory(tensor)) tensor.copy_(bytes_[i].view(tensor.scalar_type()).view(tensor.sizes()));
  }
}

void ValueBytes::broadcast(int root, const ProcessGroup& group, const CallOptions& options) {
  read();
  if (!bytes_.empty()) group.broadcast(bytes_, root, options);
  write_back();
}

}  // namespace lockstep::internal
