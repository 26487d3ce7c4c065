#include "lockstep/train/checkpoint/state_digest.h"

#include <span>

#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"

namespace lockstep {

std::string sha256_of(const Checkpoint& checkpoint) {
  internal::RunningDigest sha256(DigestKind::sha_256);
  for (const auto& [name, tensor] : checkpoint.tensors) {
    // A line break ends the text, and no name of a type or a number holds one.
    const std::string head = fmt::format("{} {} [{}] {}\n", name.size(), name, fmt::join(tensor.sizes(), ","),
                                         c10::toString(tensor.scalar_type()));
    sha256.add(std::as_bytes(std::span(head)));
    const at::Tensor dense = tensor.contiguous();
    sha256.add({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  }
  return sha256.digits();
}

std::string sha256_of(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  Checkpoint state;
  add_module(state, module);
  add_optimizer(state, optimizer);
  return sha256_of(state);
}

}  // namespace lockstep
