// DType names the element types that collectives move. Independent of torch; group/ maps torch's types onto it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

// `opaque` stands for any other type: single bytes that are moved and not computed with.
enum class DType : std::uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i32,
  i64,
  u8,
  i8,
  i16,
  boolean,
  c64,
  c128,
  u16,
  u32,
  u64,
  opaque
};

std::size_t element_size(DType dtype);    // bytes
std::string_view to_string(DType dtype);  // "float32", ... as PyTorch prints it
bool is_floating_point(DType dtype);
bool is_complex(DType dtype);  // pairs of float32 or float64

}  // namespace lockstep
