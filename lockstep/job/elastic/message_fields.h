// How the fields of agents' messages are written and read, each kind once: lengths are limited and numbers checked.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/job/elastic/rank_status_fields.h"

namespace lockstep::internal {

inline constexpr std::string_view kAgentMessage = "a message of an agent";
inline constexpr std::size_t kMostLines = 64;
inline constexpr std::size_t kMostTextBytes = std::size_t{4} << 10;
inline constexpr std::uint32_t kMostShare = 1 << 30;
inline constexpr double kThousand = 1000;
inline constexpr double kHalf = 0.5;  // to round

// The fields of a message are listed once, in fields(); these two write and read them.
class FieldWriter {
 public:
  explicit FieldWriter(Bytes& out) : out_(out) {}
  void text(const std::string& value, std::size_t most) { put_bytes(out_, ByteView(value).substr(0, most)); }
  void number(int value, int /*least*/, int /*most*/, std::string_view /*name*/) {
    put_u32(out_, static_cast<std::uint32_t>(value));
  }
  void size(std::uint32_t value, std::uint32_t /*most*/, std::string_view /*name*/) { put_u32(out_, value); }
  void amount(std::int64_t value, std::string_view /*name*/) { put_u64(out_, static_cast<std::uint64_t>(value)); }
  void count(std::uint64_t value, std::string_view /*name*/) { put_u64(out_, value); }
  void value_name(const std::string& value) { text(value, kMostValueNameBytes); }
  void real(double value) { put_u64(out_, std::bit_cast<std::uint64_t>(value)); }
  void letter(char value) { put_u8(out_, static_cast<std::uint8_t>(value)); }
  // Of a core, in thousandths.
  void share(double value) {
    put_u32(out_, static_cast<std::uint32_t>(std::clamp(value * kThousand + kHalf, 0.0, double{kMostShare})));
  }
  template <class Enum>
  void choice(Enum value, Enum /*first*/, Enum /*last*/, std::string_view /*name*/) {
    put_u8(out_, static_cast<std::uint8_t>(value));
  }
  void flag(bool value) { put_u8(out_, value ? 1 : 0); }
  template <class Each, class List>
  void list(const List& value, std::size_t most, const Each& each) {
    const std::size_t count = std::min(value.size(), most);
    put_u32(out_, static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) each(*this, value[i]);
  }
  template <class Value, class Each>
  void optional(const std::optional<Value>& value, const Each& each) {
    flag(value.has_value());
    if (value) each(*this, *value);
  }
  void lines(const std::deque<std::string>& value) {
    const std::size_t count = std::min(value.size(), kMostLines);
    put_u32(out_, static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) text(value[i], kMostTextBytes);
  }

 private:
  Bytes& out_;
};

class FieldReader {
 public:
  explicit FieldReader(ByteView bytes) : reader_(bytes, kAgentMessage) {}
  void text(std::string& value, std::size_t most) {
    const std::size_t size = checked_size(reader_.u32(), most, "length of a text", kAgentMessage);
    value = std::string(reader_.take(size));
  }
  void number(int& value, int least, int most, std::string_view name) {
    value = checked_between(reader_.i32(), least, most, name, kAgentMessage);
  }
  void size(std::uint32_t& value, std::uint32_t most, std::string_view name) {
    value = checked_between<std::uint32_t>(reader_.u32(), 0, most, name, kAgentMessage);
  }
  void amount(std::int64_t& value, std::string_view name) {
    value = checked_between<std::int64_t>(reader_.i64(), 0, std::int64_t{1} << 62, name, kAgentMessage);
  }
  void count(std::uint64_t& value, std::string_view name) {
    value = checked_between<std::uint64_t>(reader_.u64(), 0, std::uint64_t{1} << 62, name, kAgentMessage);
  }
  void value_name(std::string& value) {
    text(value, kMostValueNameBytes);
    if (!is_value_name(value))
      throw Error(ErrorKind::corrupt_data, std::string(kAgentMessage) + " has no name of a value");
  }
  void real(double& value) { value = std::bit_cast<double>(reader_.u64()); }
  void letter(char& value) {
    value = static_cast<char>(checked_between<int>(int{reader_.u8()}, 0x20, 0x7e, "letter", kAgentMessage));
  }
  void share(double& value) {
    value = checked_between<std::uint32_t>(reader_.u32(), 0, kMostShare, "share of a core", kAgentMessage) / kThousand;
  }
  template <class Enum>
  void choice(Enum& value, Enum first, Enum last, std::string_view name) {
    value = checked_enum(reader_.u8(), first, last, name, kAgentMessage);
  }
  void flag(bool& value) { value = checked_between<int>(reader_.u8(), 0, 1, "flag", kAgentMessage) == 1; }
  template <class Each, class List>
  void list(List& value, std::size_t most, const Each& each) {
    const std::size_t count = checked_size(reader_.u32(), most, "number of entries", kAgentMessage);
    for (std::size_t i = 0; i < count; ++i) each(*this, value.emplace_back());
  }
  template <class Value, class Each>
  void optional(std::optional<Value>& value, const Each& each) {
    bool is_there = false;
    flag(is_there);
    if (is_there) each(*this, value.emplace());
  }
  void lines(std::deque<std::string>& value) {
    const std::size_t count = checked_size(reader_.u32(), kMostLines, "number of lines", kAgentMessage);
    for (std::size_t i = 0; i < count; ++i) text(value.emplace_back(), kMostTextBytes);
  }
  std::uint8_t kind() { return reader_.u8(); }
  void end() const { reader_.expect_end(); }

 private:
  WireReader reader_;
};

}  // namespace lockstep::internal
