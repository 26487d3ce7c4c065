// Elements that lie in a storage with strides, brought into row-major order. storage on disk -> fetch() -> out. Reads
// the storage once, from front to back, with bounded memory, also for transposed and expanded tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

struct StridedLayout {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // elements; not negative
  std::int64_t offset = 0;            // elements
  std::size_t element_bytes = 1;
};

// The bytes of all elements. Error{corrupt_data}, with `origin`, if there are more than 2^63, or if an element lies
// outside of a storage of `storage_bytes`.
std::uint64_t checked_strided_bytes(const StridedLayout& layout, std::uint64_t storage_bytes,
                                    const std::string& origin);

// Fills the second argument with the storage's bytes from the first on.
using FetchBytes = std::function<void(std::uint64_t, MutableByteSpan)>;

// REQUIRES: the layout is checked, and `out` has its bytes.
void read_strided(const StridedLayout& layout, std::uint64_t storage_bytes, const FetchBytes& fetch,
                  MutableByteSpan out);

}  // namespace lockstep::internal
