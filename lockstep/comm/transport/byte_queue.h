// Bytes in the order in which they came. One thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

class ByteQueue {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - begin_; }
  void add(ByteSpan bytes);
  std::size_t take(MutableByteSpan space);
  void clear();

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
};

}  // namespace lockstep::internal
