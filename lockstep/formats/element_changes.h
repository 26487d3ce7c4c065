// Stored elements of tensors -> their actual values, where these differ: files with the other byte order, and tensors
// that PyTorch conjugates or negates when they are used. Pure.
#pragma once

#include <cstddef>
#include <string_view>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

struct ElementChanges {
  std::size_t swapped_bytes = 1;  // in numbers of this size; applied first
  bool is_conjugated = false;
  bool is_negated = false;

  bool any() const { return swapped_bytes > 1 || is_conjugated || is_negated; }
};

// REQUIRES: `dtype` is one of kTorchTypes, and `elements` are whole ones.
void change_elements(std::string_view dtype, const ElementChanges& changes, MutableByteSpan elements);

// Of the numbers that elements of a type are made of: an element, or half of a complex one.
std::size_t number_bytes(std::string_view dtype);

}  // namespace lockstep::internal
