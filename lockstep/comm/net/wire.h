// Little-endian encoding of small control messages. value -> bytes -> value.
// Pure. A WireReader never reads past its input: a short or over-long message is Error{corrupt_data}.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"

namespace lockstep::internal {

void put_u8(Bytes& out, std::uint8_t value);
void put_u16(Bytes& out, std::uint16_t value);
void put_u32(Bytes& out, std::uint32_t value);
void put_u64(Bytes& out, std::uint64_t value);
// A u32 length and the bytes.
void put_bytes(Bytes& out, ByteView value);

class WireReader {
 public:
  // `origin` names the message in errors; both must outlive the reader.
  WireReader(ByteView input, const Origin& origin) : input_(input), origin_(origin) {}

  const Origin& origin() const { return origin_; }  // for what has to be checked

  std::uint8_t u8();
  std::uint16_t u16();
  std::uint32_t u32();
  std::uint64_t u64();
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  ByteView bytes();  // as put_bytes() wrote them; a view into the input
  ByteView take(std::size_t count);
  std::size_t left() const { return input_.size(); }
  void expect_end() const;

 private:
  std::uint64_t number(std::size_t width);

  ByteView input_;
  Origin origin_;
};

}  // namespace lockstep::internal
