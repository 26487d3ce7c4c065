// The names that a pickle may refer to, and their meaning for Lockstep: all those of torch.load(weights_only=True), and
// further ones of PyTorch's checkpoints and C++. Results of other names are opaque. Nothing is imported or called for
// any of them. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

enum class PickleRole : std::uint8_t {
  constant,      // torch.float32: a value by itself; `detail` is the type as safetensors name it
  storage_type,  // `detail` is the type; "U8" for a storage without type
  object,        // made of arguments, perhaps given a state, and passed on
  factory,       // of a defaultdict: only its name matters
  ordered_dict,  // also of a dict, as a Counter
  default_dict,
  size,
  set,
  encode,     // bytes, as protocol 2 writes them
  bytearray,  // the same
  tensor_class,
  tensor_v1,
  tensor_v2,
  tensor_v3,
  tensor_with_attributes,
  tensor_of_device,  // which was brought to the CPU
  parameter,
  sparse_tensor,
  quantised_tensor,
  nested_tensor,
  meta_tensor,     // without elements, as the next
  wrapper_tensor,  // of a subclass
  typed_list,      // a list of one type, as C++ writes it
  typed_value,     // a value and the text of its type, as C++ writes it
  unknown,
};

struct PickleClass {
  std::string_view name;  // "module.name"
  PickleRole role;
  std::string_view detail = {};
};

// Role `unknown` for a name that is not on the list. REQUIRES: it is no program.
const PickleClass& find_pickle_class(std::string_view module, std::string_view name);
// Whether the name runs programs, so that a file with it is an attack: eval, modules such as `os`.
bool is_program(std::string_view module, std::string_view name);

}  // namespace lockstep::internal
