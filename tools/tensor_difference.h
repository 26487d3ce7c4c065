// How far the elements of two tensors of one type differ. bytes, bytes -> counts and largest differences. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep::tools {

struct TensorDifference {
  std::uint64_t elements = 0;   // that were compared
  std::uint64_t different = 0;  // by more than the tolerance
  double largest = 0;           // difference, of all; infinite where only one of two is a NaN
  double largest_relative = 0;  // to the larger of the two
};

// Goes on with the elements of these bytes. Two NaNs are equal, and so are 0 and -0. tolerance: numbers are equal if
// they differ by no more than this, or than this part of the larger one. REQUIRES: dtype is one of kTorchTypes;
// both have the same size, a multiple of the element's.
void compare_elements(const std::string& dtype, ByteSpan a, ByteSpan b, double tolerance, TensorDifference& difference);

}  // namespace lockstep::tools
