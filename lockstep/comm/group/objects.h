// Objects between ranks: anything that an ObjectCodec turns into bytes and back. object -> bytes -> tensors -> group.
// Bytes are data, never code: decoding runs nothing but the codec. Collective and blocking; errors as of ProcessGroup's
// calls, and Error{corrupt_data} if a codec cannot decode the bytes, or, naming the rank, for a length that no object
// has. An object takes at most kMostObjectBytes, 1 GiB; if one is longer, all ranks get Error{invalid_argument} that
// names its rank, and the group remains usable.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/group/shape_message.h"

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

[[noreturn]] void refuse_object(std::size_t bytes, std::size_t expected_bytes);  // Error{corrupt_data}
[[noreturn]] void refuse_bool(int byte);                                         // Error{corrupt_data}

// Numbers and enumerations.
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
struct ObjectCodec<T> {
  static std::string encode(const T& value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
  static T decode(std::string_view bytes) {
    if (bytes.size() != sizeof(T)) refuse_object(bytes.size(), sizeof(T));
    if constexpr (std::is_same_v<T, bool>) {
      if (bytes[0] != 0 && bytes[0] != 1) refuse_bool(bytes[0]);
    }
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

namespace internal {

// Other ranks' errors quote what a codec throws.
template <class T>
std::string encoded(const ProcessGroup& group, const T& object) try {
  return ObjectCodec<T>::encode(object);
} catch (...) {
  group.note_exception("encoding of an object");
  throw;
}

template <class T>
T decoded(const ProcessGroup& group, std::string_view bytes) {
  const c10::OptionalDeviceGuard guard(group.device());
  return ObjectCodec<T>::decode(bytes);
}

}  // namespace internal

// The bytes of all ranks, in rank order; lengths may differ.
std::vector<std::string> all_gather_bytes(const ProcessGroup& group, const std::string& mine,
                                          const CallOptions& options = {});
// The same on root; empty elsewhere.
std::vector<std::string> gather_bytes_to(const ProcessGroup& group, const std::string& mine, int root,
                                         std::size_t most = internal::kMostObjectBytes,
                                         const CallOptions& options = {});
std::string broadcast_bytes(const ProcessGroup& group, const std::string& mine, int root,
                            const CallOptions& options = {});
// `all`: on root, one for each rank.
std::string scatter_bytes_from(const ProcessGroup& group, const std::vector<std::string>& all, int root,
                               const CallOptions& options = {});

// The objects of all ranks, in rank order.
template <class T>
std::vector<T> all_gather_object(const ProcessGroup& group, const T& mine, const CallOptions& options = {}) {
  std::vector<T> objects;
  for (const auto& bytes : all_gather_bytes(group, internal::encoded(group, mine), options)) {
    objects.push_back(internal::decoded<T>(group, bytes));
  }
  return objects;
}

// The same on root; empty elsewhere.
template <class T>
std::vector<T> gather_object(const ProcessGroup& group, const T& mine, int root = 0, const CallOptions& options = {}) {
  std::vector<T> objects;
  for (const auto& bytes :
       gather_bytes_to(group, internal::encoded(group, mine), root, internal::kMostObjectBytes, options)) {
    objects.push_back(internal::decoded<T>(group, bytes));
  }
  return objects;
}

// The object of root; `mine` is used there only.
template <class T>
T broadcast_object(const ProcessGroup& group, const T& mine, int root = 0, const CallOptions& options = {}) {
  const std::string bytes = group.rank() == root ? internal::encoded(group, mine) : std::string();
  return internal::decoded<T>(group, broadcast_bytes(group, bytes, root, options));
}

// Object rank() of the list on root, which has one for each rank.
template <class T>
T scatter_object(const ProcessGroup& group, const std::vector<T>& objects, int root = 0,
                 const CallOptions& options = {}) {
  std::vector<std::string> all;
  for (const T& object : objects) all.push_back(internal::encoded(group, object));
  return internal::decoded<T>(group, scatter_bytes_from(group, all, root, options));
}

}  // namespace lockstep
