// Objects between ranks: anything that an ObjectCodec turns into bytes and back. object -> bytes -> tensors -> group.
// Bytes are data, never code: decoding runs nothing but the codec. Errors of ProcessGroup's calls that exchange objects
// are those of its other calls, and Error{corrupt_data} if a codec cannot decode the bytes, or, naming the rank, for a
// length that no object has. An object takes at most 1 GiB; if one is longer, all ranks get Error{invalid_argument}
// that names its rank, and the group remains usable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep {

// For numbers, strings and tensors; object_codecs.h has it for containers, JSON and IValues. For your own types,
// specialise it with `static std::string encode(const T&)` and `static T decode(std::string_view)`.
template <class T>
struct ObjectCodec;

template <>
struct ObjectCodec<std::string> {
  static std::string encode(const std::string& text) { return text; }
  static std::string decode(std::string_view bytes) { return std::string(bytes); }
};

// Dense tensors of any shape, strides, dtype and device. They arrive on the group's device if that is of the same type
// (see GroupOptions::device), else on the receiver's current one of that type, or on the CPU if it has none.
// Error{invalid_argument} for other tensors.
template <>
struct ObjectCodec<at::Tensor> {
  static std::string encode(const at::Tensor& tensor);
  static at::Tensor decode(std::string_view bytes);
};

namespace internal {
[[noreturn]] void refuse_object(std::size_t bytes, std::size_t expected_bytes);  // Error{corrupt_data}
[[noreturn]] void refuse_bool(int byte);                                         // Error{corrupt_data}
}  // namespace internal

// Numbers and enumerations.
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
struct ObjectCodec<T> {
  static std::string encode(const T& value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
  static T decode(std::string_view bytes) {
    if (bytes.size() != sizeof(T)) internal::refuse_object(bytes.size(), sizeof(T));
    if constexpr (std::is_same_v<T, bool>) {
      if (bytes[0] != 0 && bytes[0] != 1) internal::refuse_bool(bytes[0]);
    }
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

}  // namespace lockstep
