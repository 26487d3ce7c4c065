#include "lockstep/group/ownership.h"

namespace lockstep {

bool owns_its_memory(const at::Tensor& tensor, std::size_t known_holders) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const c10::Storage& storage = tensor.storage();
  if (storage.use_count() > known_holders) return false;
  // Torch's allocators make the block itself the context. Borrowed memory and copy-on-write have another one, or none.
  const c10::DataPtr& memory = storage.data_ptr();
  return memory.get() == nullptr || memory.get_context() == memory.get();
}

}  // namespace lockstep
