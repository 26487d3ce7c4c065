// The element types of PyTorch that Lockstep reads and writes: how safetensors, Python and old storages call them.
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep::internal {

struct TorchType {
  std::string_view name;     // as in safetensors_element_size(); F4_E2M1_X2 are two numbers in a byte
  std::string_view torch;    // torch.<this>
  std::string_view storage;  // torch.<this>; empty if tensors of the type lie in storages without type
  std::size_t element_bytes;
};

inline constexpr std::array<TorchType, 27> kTorchTypes = {{{"BOOL", "bool", "BoolStorage", 1},
                                                           {"U8", "uint8", "ByteStorage", 1},
                                                           {"I8", "int8", "CharStorage", 1},
                                                           {"U16", "uint16", "", 2},
                                                           {"I16", "int16", "ShortStorage", 2},
                                                           {"F16", "float16", "HalfStorage", 2},
                                                           {"BF16", "bfloat16", "BFloat16Storage", 2},
                                                           {"U32", "uint32", "", 4},
                                                           {"I32", "int32", "IntStorage", 4},
                                                           {"F32", "float32", "FloatStorage", 4},
                                                           {"U64", "uint64", "", 8},
                                                           {"I64", "int64", "LongStorage", 8},
                                                           {"F64", "float64", "DoubleStorage", 8},
                                                           {"F8_E4M3", "float8_e4m3fn", "", 1},
                                                           {"F8_E5M2", "float8_e5m2", "", 1},
                                                           {"F8_E4M3FNUZ", "float8_e4m3fnuz", "", 1},
                                                           {"F8_E5M2FNUZ", "float8_e5m2fnuz", "", 1},
                                                           {"F8_E8M0", "float8_e8m0fnu", "", 1},
                                                           {"C32", "complex32", "", 4},
                                                           {"C64", "complex64", "ComplexFloatStorage", 8},
                                                           {"C128", "complex128", "ComplexDoubleStorage", 16},
                                                           {"F4_E2M1_X2", "float4_e2m1fn_x2", "", 1},
                                                           {"BITS8", "bits8", "", 1},
                                                           {"BITS16", "bits16", "", 2},
                                                           {"BITS1X8", "bits1x8", "", 1},
                                                           {"BITS2X4", "bits2x4", "", 1},
                                                           {"BITS4X2", "bits4x2", "", 1}}};

// By the name that safetensors use; nullptr for others.
constexpr const TorchType* find_torch_type(std::string_view name) {
  for (const TorchType& type : kTorchTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

// 0 for a type that is not in the table.
constexpr std::size_t torch_element_size(std::string_view name) {
  const TorchType* type = find_torch_type(name);
  return type == nullptr ? 0 : type->element_bytes;
}

constexpr bool is_complex_type(std::string_view name) { return name.starts_with('C'); }

}  // namespace lockstep::internal
