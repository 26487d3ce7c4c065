#include "lockstep/base/dtype.h"

namespace lockstep {
namespace {

struct Traits {
  std::size_t bytes;
  std::string_view name;
};

constexpr Traits of(DType dtype) {
  switch (dtype) {
    case DType::f32: return {4, "float32"};
    case DType::f64: return {8, "float64"};
    case DType::f16: return {2, "float16"};
    case DType::bf16: return {2, "bfloat16"};
    case DType::i32: return {4, "int32"};
    case DType::i64: return {8, "int64"};
    case DType::u8: return {1, "uint8"};
    case DType::i8: return {1, "int8"};
    case DType::i16: return {2, "int16"};
    case DType::boolean: return {1, "bool"};
    case DType::c64: return {8, "complex64"};
    case DType::c128: return {16, "complex128"};
    case DType::u16: return {2, "uint16"};
    case DType::u32: return {4, "uint32"};
    case DType::u64: return {8, "uint64"};
    case DType::opaque: return {1, "bytes"};
  }
  return {0, "unknown"};
}

}  // namespace

std::size_t element_size(DType dtype) { return of(dtype).bytes; }
std::string_view to_string(DType dtype) { return of(dtype).name; }

bool is_floating_point(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

}  // namespace lockstep
