// Writes files that torch.load(weights_only=True) reads, without torch: values and tensors -> a zip archive as PyTorch
// 1.6 and newer write it -> AtomicFile. The bytes of tensors are streamed, so they may be larger than memory. Replaces
// `path` atomically. Blocks for disk I/O. Error{invalid_argument}: a value that cannot be stored, named by its path.
// Error{internal}: the disk is full or failing; an old file of that name is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep {

using ByteSink = std::function<void(ByteSpan)>;  // takes the next piece of a tensor

// A tensor that is written in row-major order, contiguous.
struct TorchTensorSource {
  std::string dtype = {};  // as in safetensors_element_size(): "F32", "C64"
  std::vector<std::int64_t> shape = {};
  // Hands all of the tensor's bytes to the sink, in any number of pieces. Called once, while the file is written.
  std::function<void(const ByteSink&)> write = {};
  bool requires_grad = false;
  // Tensors with the same storage name share memory when read: it is written once. The name is not written. They must
  // have the same type and number of elements. Empty: the tensor has its own memory.
  std::string storage = {};
};
// The same for bytes that remain valid until the file is written.
TorchTensorSource tensor_of(std::string dtype, std::vector<std::int64_t> shape, ByteSpan bytes);

// None, bool, int, float, str, list, tuple, dict or tensor.
struct TorchValue {
  using List = std::vector<TorchValue>;
  struct Tuple {
    List items;
  };
  using Key = std::variant<std::int64_t, std::string>;
  using Dict = std::vector<std::pair<Key, TorchValue>>;  // keeps its order

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, List, Tuple, Dict, TorchTensorSource> value =
      nullptr;
};

void write_torch_file(const std::filesystem::path& path, const TorchValue& root);  // replaced as a whole

}  // namespace lockstep
