// How a PickleTree is stored: nodes in one vector that refer to each other by index, and the pickle's own bytes, which
// texts point into. Made by read_pickle(), read through PickleValue. Movable, not copyable: views point to it.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/pickle_value.h"

namespace lockstep::internal {

struct PickleClass;

inline constexpr std::uint32_t kNoNode = std::numeric_limits<std::uint32_t>::max();

// Children: items; keys and values in turn; of an object its arguments; of an opaque value its arguments and perhaps
// its items; of a storage its type and device, and where it begins in another one and its elements, if it is a part of
// that; of a tensor its storage, shape and strides, and its type if its storage has none. There may be millions of
// nodes.
struct PickleNode {
  PickleKind kind = PickleKind::none;
  bool is_true : 1 = false;  // a boolean's value; a tensor's requires_grad
  bool is_parameter : 1 = false;
  bool is_conjugated : 1 = false;
  bool is_negated : 1 = false;
  std::uint32_t state = kNoNode;
  const PickleClass* meaning = nullptr;  // of a name
  std::int64_t integer = 0;              // also a tensor's offset, the elements of a storage, and the bits of a number
  std::string_view text = {};            // also the name of a class, the key of a storage, a large integer's bytes
  std::vector<std::uint32_t> children = {};
};

class PickleTree {
 public:
  PickleTree(Bytes bytes, std::string origin) : bytes_(std::move(bytes)), origin_(std::move(origin)) {}
  PickleTree(const PickleTree&) = delete;
  PickleTree& operator=(const PickleTree&) = delete;

  PickleValue root() const { return {*this, root_}; }
  // The file, for errors.
  const std::string& origin() const { return origin_; }
  const PickleNode& node(std::uint32_t index) const { return nodes_[index]; }
  std::size_t size() const { return nodes_.size(); }
  ByteView bytes() const { return bytes_; }

 private:
  friend class PickleMachine;

  Bytes bytes_;
  std::string origin_;
  std::deque<PickleNode> nodes_;   // which does not move them as it grows
  std::deque<std::string> texts_;  // that are not in the bytes in this form
  std::uint32_t root_ = kNoNode;
};

}  // namespace lockstep::internal
