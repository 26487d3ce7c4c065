// Parameters and buffers of a module by name, as PyTorch's state_dict() has them. Does not communicate.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/train/ddp/checks/model_comparison.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

enum class StateDictKeys { bare, module_prefix };  // "fc.weight", or PyTorch's "module.fc.weight"

// The tensors are the module's own.
NamedTensors state_dict_of(const torch::nn::Module& module, StateDictKeys keys);
// Copies values in. Keys with and without the "module." prefix are accepted. Error{invalid_argument} lists every
// missing, unexpected and differently shaped entry, and then nothing is copied.
void load_state_dict(const torch::nn::Module& module, const NamedTensors& state);

namespace internal {

using TensorsByName = std::map<std::string, at::Tensor>;  // the stored tensors, and their destinations
enum class Types { equal, converted };                    // whether an element type may differ from the stored one

// Checks as copy_by_name() does, and returns a function that copies.
std::function<void()> checked_copy_by_name(TensorsByName stored, TensorsByName into, Types types,
                                           const std::string& source, const std::string& problem);
// Copies stored tensors, of a "checkpoint" or a "state", into those of the same names. Error{invalid_argument}:
// `problem`, followed by everything that is missing, unexpected, or of another shape or type; then nothing is copied.
void copy_by_name(const TensorsByName& stored, const TensorsByName& into, Types types, const std::string& source,
                  const std::string& problem);

}  // namespace internal

}  // namespace lockstep
