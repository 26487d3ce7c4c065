#include "lockstep/formats/element_changes.h"

#include <algorithm>

#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep::internal {
namespace {

// In place, of a number whose lowest byte comes first.
void negate_integer(MutableByteSpan number) {
  unsigned carry = 1;
  for (std::byte& each : number) {
    carry += static_cast<unsigned>(~each & std::byte{0xff});
    each = static_cast<std::byte>(carry & 0xff);
    carry >>= 8;
  }
}

}  // namespace

std::size_t number_bytes(std::string_view dtype) {
  return torch_element_size(dtype) / (is_complex_type(dtype) ? 2 : 1);
}

void change_elements(std::string_view dtype, const ElementChanges& changes, MutableByteSpan elements) {
  if (!changes.any()) return;
  const auto swapped = static_cast<std::ptrdiff_t>(changes.swapped_bytes);
  for (auto at = elements.begin(); swapped > 1 && elements.end() - at >= swapped; at += swapped) {
    std::reverse(at, at + swapped);
  }
  const std::size_t bytes = number_bytes(dtype);
  const bool is_integer = dtype.front() == 'I' || dtype.front() == 'U';
  bool is_imaginary = false;
  for (std::size_t at = 0; at + bytes <= elements.size(); at += bytes) {
    const bool changes_sign = changes.is_negated != (changes.is_conjugated && is_imaginary);
    if (changes_sign && is_integer) {
      negate_integer(elements.subspan(at, bytes));
    } else if (changes_sign) {
      elements[at + bytes - 1] ^= std::byte{0x80};
    }
    is_imaginary = !is_imaginary && is_complex_type(dtype);
  }
}

}  // namespace lockstep::internal
