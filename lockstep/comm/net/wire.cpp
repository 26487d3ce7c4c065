#include "lockstep/comm/net/wire.h"

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

void put_number(Bytes& out, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

}  // namespace

void put_u8(Bytes& out, std::uint8_t value) { put_number(out, value, 1); }
void put_u16(Bytes& out, std::uint16_t value) { put_number(out, value, 2); }
void put_u32(Bytes& out, std::uint32_t value) { put_number(out, value, 4); }
void put_u64(Bytes& out, std::uint64_t value) { put_number(out, value, 8); }

void put_bytes(Bytes& out, ByteView value) {
  put_u32(out, static_cast<std::uint32_t>(value.size()));
  out.append(value);
}

ByteView WireReader::take(std::size_t count) {
  if (count > input_.size()) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{} is truncated: {} bytes needed, {} left", to_string(origin_), count, input_.size()),
                {.peer = origin_.rank});
  }
  const ByteView taken = input_.substr(0, count);
  input_.remove_prefix(count);
  return taken;
}

std::uint64_t WireReader::number(std::size_t width) {
  const ByteView digits = take(width);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value |= std::uint64_t{static_cast<std::uint8_t>(digits[i])} << (8 * i);
  return value;
}

std::uint8_t WireReader::u8() { return static_cast<std::uint8_t>(number(1)); }
std::uint16_t WireReader::u16() { return static_cast<std::uint16_t>(number(2)); }
std::uint32_t WireReader::u32() { return static_cast<std::uint32_t>(number(4)); }
std::uint64_t WireReader::u64() { return number(8); }
ByteView WireReader::bytes() { return take(u32()); }

void WireReader::expect_end() const {
  if (!input_.empty()) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{} has {} trailing bytes", to_string(origin_), input_.size()),
                {.peer = origin_.rank});
  }
}

}  // namespace lockstep::internal
