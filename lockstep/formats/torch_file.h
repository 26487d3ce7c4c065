// Files of torch.save, without torch: those of PyTorch 1.6 and newer (a zip archive), the legacy ones before, and those
// of torch::save() in C++ (tensors, modules and optimizers), TorchScript included. file -> TorchFile -> values, and
// tensors that are read one by one. A pickle in them is read by read_pickle(): nothing is ever executed. Files that
// torch.load(weights_only=True) opens are read; a value of an unknown class is opaque, and the rest of the file can be
// read. Tensors may be larger than memory; only a file's values are kept. In archives every byte of a tensor is checked
// against its CRC-32; legacy files have none.
// Not thread-safe. Blocks for disk I/O. Error{invalid_argument}: no such file, another kind of file, one that would run
// a program, or one without any readable value. Error{corrupt_data}: damage. Both name the file and the problem.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/file_io.h"
#include "lockstep/formats/pickle_value.h"

namespace lockstep {

struct TorchTensor {
  std::string dtype = {};  // as in safetensors_element_size(): "F32", "C64"
  std::vector<std::int64_t> shape = {};
  std::vector<std::int64_t> strides = {};  // elements, like the offset
  std::int64_t offset = 0;
  std::string storage = {};  // tensors with the same key share memory
  std::string device = {};   // that it was saved on
  bool requires_grad = false;
  bool is_parameter = false;
  std::uint64_t bytes = 0;  // of all elements, without gaps
  // How read() changes stored elements.
  bool is_conjugated = false;
  bool is_negated = false;
  std::size_t swapped_bytes = 1;  // in numbers of this size with the other byte order
};

// Whether its elements are contiguous in their storage, in row-major order.
bool is_row_major(const TorchTensor& tensor);

class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path);
  // A file that was saved into another one, such as an entry of a part of a distributed checkpoint.
  TorchFile(internal::OpenFile file, std::uint64_t begin, std::uint64_t bytes, const std::string& name);
  TorchFile(TorchFile&&) noexcept;
  TorchFile& operator=(TorchFile&&) noexcept;
  ~TorchFile();

  // The saved value. Views are valid as long as this object.
  PickleValue root() const;
  // Error{corrupt_data} if an element lies outside of its storage.
  TorchTensor tensor(const PickleValue& value) const;
  // In row-major order. REQUIRES: `out` has tensor.bytes.
  void read(const TorchTensor& tensor, MutableByteSpan out) const;
  // Some of them, from byte `begin` on. REQUIRES: is_row_major(tensor), and it has these bytes.
  void read(const TorchTensor& tensor, std::uint64_t begin, MutableByteSpan out) const;
  // Otherwise damage of tensors cannot be detected.
  bool has_checksums() const;
  // "model.pt"; the name in errors.
  const std::string& name() const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

// A value that contains no other values, and its path: the keys and positions that lead to it, joined by '.'. An opaque
// value is one; the paths of tensors in it, or in its attributes, begin with its path.
struct NamedPickleValue {
  std::string name;
  PickleValue value;
};

// Every such value below `root`, in the file's order; if `root` is such a value, its name is empty. Objects written by
// C++ count as dicts of their attributes. Error{invalid_argument}: two values have the same name, or the names take
// more than 256 MiB.
std::vector<NamedPickleValue> flatten(const PickleValue& root);

}  // namespace lockstep
