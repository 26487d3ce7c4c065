// Pickles made by hand, opcode by opcode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::testing {

inline const std::string kProtocol2("\x80\x02", 2);

inline std::string little_endian(std::uint64_t number, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i) bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  return bytes;
}
inline std::string text(std::string_view value) { return "X" + little_endian(value.size(), 4) + std::string(value); }
inline std::string integer(std::uint32_t value) { return "J" + little_endian(value, 4); }
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
// A persistent id of a storage of floats.
inline std::string storage(std::string_view key, std::uint32_t elements) {
  return "(" + text("storage") + global("torch", "FloatStorage") + text(key) + text("cpu") + integer(elements) + "tQ";
}
inline std::string numbers(std::initializer_list<std::uint32_t> values) {
  std::string bytes = "(";
  for (const std::uint32_t each : values) bytes += integer(each);
  return bytes + "t";
}
// torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, False, OrderedDict())
inline std::string tensor(const std::string& storage, std::uint32_t offset, const std::string& shape,
                          const std::string& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + integer(offset) + shape + strides + "\x89" +
         global("collections", "OrderedDict") + ")RtR";
}

}  // namespace lockstep::testing
