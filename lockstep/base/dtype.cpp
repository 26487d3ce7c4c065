#include "lockstep/base/dtype.h"

namespace lockstep {

std::size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::f64: return 8;
    case DType::f16: return 2;
    case DType::bf16: return 2;
    case DType::i32: return 4;
    case DType::i64: return 8;
    case DType::u8: return 1;
    case DType::i8: return 1;
    case DType::i16: return 2;
    case DType::boolean: return 1;
    case DType::c64: return 8;
    case DType::c128: return 16;
    case DType::opaque: return 1;
  }
  return 0;
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::i16: return "int16";
    case DType::boolean: return "bool";
    case DType::c64: return "complex64";
    case DType::c128: return "complex128";
    case DType::opaque: return "bytes";
  }
  return "unknown";
}

bool is_floating_point(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

}  // namespace lockstep
