// The contents of a pickle, as a tree of values. bytes -> read_pickle() -> PickleTree -> PickleValue. Values that the
// pickle shares are shared here; there are no cycles, and the tree is at most PickleLimits::kDepth deep, so functions
// may recurse: a value within itself is replaced by an opaque one called kItself. Classes are names only: nothing is
// ever called or imported. A tensor that is not plain elements is a dict of its plain parts: the indices and values of
// a sparse one, the integers and scales of a quantised one.
// A PickleValue is a view, valid as long as its tree, which never changes: safe to read from several threads. Access as
// another kind is Error{corrupt_data} that names the file, the actual and the expected kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep {

// The values of any pickle take at most about 600 MiB in addition to its bytes.
struct PickleLimits {
  static constexpr std::size_t kBytes = std::size_t{512} << 20;  // of one pickle
  static constexpr std::size_t kValues = std::size_t{4} << 20;
  static constexpr std::uint64_t kExpandedValues = std::uint64_t{64} << 20;  // if shared values were written out
  static constexpr std::size_t kDepth = 400;
  static constexpr std::size_t kDimensions = 64;
};

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,        // 64 bits
  large_integer,  // more than those
  number,         // floating point
  text,           // UTF-8
  bytes,
  list,
  tuple,  // and torch.Size
  dict,   // in the pickle's order; also OrderedDict, defaultdict and Counter
  set,
  tensor,
  storage,
  name,    // a class or a constant, such as torch.float32
  object,  // of a class that Lockstep only passes on: its name, its arguments, its state
  opaque,  // made by a class or function that Lockstep does not know: its name and its arguments
};
std::string_view to_string(PickleKind kind);

inline constexpr std::string_view kItself = "a value that contains itself";

// Memory that tensors lie in.
struct PickleStorage {
  std::string dtype;  // as safetensors name it; "U8" for one without type
  std::string key;
  std::string device;  // that it was saved on
  std::uint64_t bytes = 0;
  // Elements: of a storage that is a part of another one, whose key it has then.
  std::int64_t begin = 0;
  std::int64_t elements = 0;
};

struct PickleTensor {
  PickleStorage storage;
  std::string dtype;
  std::int64_t offset = 0;  // elements, like the strides
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  bool requires_grad = false;
  bool is_parameter = false;
  // Its elements are the conjugates or the negatives of the stored ones.
  bool is_conjugated = false;
  bool is_negated = false;
};

namespace internal {
struct PickleNode;
class PickleTree;
}  // namespace internal

class PickleValue {
 public:
  PickleValue(const internal::PickleTree& tree, std::uint32_t index) : tree_(&tree), index_(index) {}

  PickleKind kind() const;
  bool is(PickleKind kind) const { return this->kind() == kind; }
  // Whether it has a tensor(): also a storage, which is one of one dimension.
  bool is_tensor() const { return is(PickleKind::tensor) || is(PickleKind::storage); }
  // The number of the value within its tree: shared values have one number.
  std::uint32_t number_in_tree() const { return index_; }
  bool boolean() const;
  std::int64_t integer() const;
  double number() const;
  std::string_view text() const;  // also of bytes
  std::string digits() const;     // of an integer of any size
  // Items of a list, tuple or set; pairs of a dict.
  std::size_t size() const;
  PickleValue item(std::size_t index) const;  // not of a dict
  PickleValue key(std::size_t index) const;   // of a dict, as the next
  PickleValue value(std::size_t index) const;
  std::optional<PickleValue> find(std::string_view key) const;
  PickleValue at(std::string_view key) const;  // Error{corrupt_data} if the dict has no such key
  // Of a name, an object or an opaque value: "torch.device".
  std::string_view class_name() const;
  // Of an object or an opaque value: a tuple, and what it was given then.
  PickleValue arguments() const;
  std::optional<PickleValue> state() const;
  std::optional<PickleValue> items() const;  // of an opaque value: a list or a dict
  PickleTensor tensor() const;
  PickleStorage storage() const;
  // A list or tuple of integers that are not negative: torch.Size, strides.
  std::vector<std::int64_t> sizes() const;

  // Error{corrupt_data}: "<file>: <why>".
  [[noreturn]] void refuse(std::string_view why) const;
  // For a value of another kind than `expected`: the same, or Error{invalid_argument} if the value is opaque.
  [[noreturn]] void refuse_kind(std::string_view expected) const;

 private:
  const internal::PickleNode& node() const;
  const internal::PickleNode& node(PickleKind expected) const;
  PickleValue child(std::size_t index) const;

  const internal::PickleTree* tree_;
  std::uint32_t index_;
};

}  // namespace lockstep
