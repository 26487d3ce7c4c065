#include "lockstep/comm/group/sole_owner.h"

namespace lockstep::internal {

bool owns_its_memory(const at::Tensor& tensor, std::size_t known_holders) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const c10::Storage& storage = tensor.storage();
  if (storage.use_count() > known_holders) return false;
  // Torch's allocators make the block itself the context. Borrowed memory and copy-on-write have another one, or none.
  const c10::DataPtr& memory = storage.data_ptr();
  return memory.get() == nullptr || memory.get_context() == memory.get();
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

bool has_layout_of(const at::Tensor& tensor, const at::Tensor& other) {
  return has_plain_memory(tensor) && tensor.scalar_type() == other.scalar_type() &&
         (tensor.strides() == other.strides() || (tensor.is_contiguous() && other.is_contiguous()));
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

}  // namespace lockstep::internal
