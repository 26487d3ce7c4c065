// Bytes is an owned run of raw bytes, ByteView a borrowed one. std::string is used because control-plane values are
// mostly short text, for which it allocates nothing; bulk tensor data travels as std::span<std::byte> instead.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

using Bytes = std::string;
using ByteView = std::string_view;
using ByteSpan = std::span<const std::byte>;   // borrowed bytes of tensors
using MutableByteSpan = std::span<std::byte>;  // the same, to be written

}  // namespace lockstep
