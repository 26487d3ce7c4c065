// The SHA-256 of a checkpoint's tensors: two runs have the same digest if and only if their tensors have equal bits.
// checkpoint -> 64 hexadecimal digits. Does not block. Error{internal}: OpenSSL refuses to compute it.
#pragma once

#include <string>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Over name, type, shape and contents of all tensors, in the order of their names. Metadata is not included.
std::string sha256_of(const Checkpoint& checkpoint);
// Of parameters, buffers and optimizer state.
std::string sha256_of(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
