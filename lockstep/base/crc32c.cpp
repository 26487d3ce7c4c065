#include "lockstep/base/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace lockstep::internal {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bits reversed

using Table = std::array<std::uint32_t, 256>;

// kTables[k][b]: what byte b makes of the remainder, k zero bytes later.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

std::uint64_t load(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

std::uint32_t take_byte(std::uint32_t remainder, std::byte byte) {
  return (remainder >> 8) ^ kTables[0][(remainder ^ static_cast<std::uint32_t>(byte)) & 0xff];
}

#if defined(__x86_64__)

// The instruction takes three cycles, and one can begin in each: so three lanes run at once. A lane turns the
// remainder before it into that remainder followed by as many zero bytes, which is linear in its bits.
constexpr std::size_t kLongLane = 2048, kShortLane = 256;

class Skip {
 public:
  explicit constexpr Skip(std::size_t zero_bytes) {
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t value = std::uint32_t{1} << bit;
      for (std::size_t i = 0; i < zero_bytes; ++i) value = (value >> 8) ^ kTables[0][value & 0xff];
      of_bit[bit] = value;
    }
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::size_t value = 0; value < 256; ++value) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) tables_[byte][value] ^= of_bit[8 * byte + bit];
        }
      }
    }
  }
  std::uint32_t operator()(std::uint32_t remainder) const {
    return tables_[0][remainder & 0xff] ^ tables_[1][remainder >> 8 & 0xff] ^ tables_[2][remainder >> 16 & 0xff] ^
           tables_[3][remainder >> 24];
  }

 private:
  std::array<Table, 4> tables_{};
};
constexpr Skip kSkipLong(kLongLane), kSkipShort(kShortLane);

template <std::size_t kLane>
__attribute__((target("sse4.2"))) std::uint32_t take_lanes(std::uint32_t remainder, ByteSpan& data, const Skip& skip) {
  while (data.size() >= 3 * kLane) {
    std::uint64_t first = remainder, second = 0, third = 0;
    for (const std::byte *at = data.data(), *end = at + kLane; at != end; at += 8) {
      first = __builtin_ia32_crc32di(first, load(at));
      second = __builtin_ia32_crc32di(second, load(at + kLane));
      third = __builtin_ia32_crc32di(third, load(at + 2 * kLane));
    }
    remainder = skip(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    remainder = skip(remainder) ^ static_cast<std::uint32_t>(third);
    data = data.subspan(3 * kLane);
  }
  return remainder;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(ByteSpan data, std::uint32_t before) {
  std::uint32_t remainder = take_lanes<kLongLane>(~before, data, kSkipLong);
  remainder = take_lanes<kShortLane>(remainder, data, kSkipShort);
  for (; data.size() >= 8; data = data.subspan(8)) {
    remainder = static_cast<std::uint32_t>(__builtin_ia32_crc32di(remainder, load(data.data())));
  }
  for (const std::byte byte : data) remainder = take_byte(remainder, byte);
  return ~remainder;
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#else

std::uint32_t by_instruction(ByteSpan data, std::uint32_t before) { return crc32c_by_table(data, before); }
bool has_instruction() { return false; }

#endif

}  // namespace

std::uint32_t crc32c_by_table(ByteSpan data, std::uint32_t before) {
  std::uint32_t remainder = ~before;
  for (; data.size() >= 8; data = data.subspan(8)) {
    const std::uint64_t word = load(data.data()) ^ remainder;
    remainder = 0;
    for (std::size_t k = 0; k < 8; ++k) remainder ^= kTables[7 - k][word >> (8 * k) & 0xff];
  }
  for (const std::byte byte : data) remainder = take_byte(remainder, byte);
  return ~remainder;
}

std::uint32_t crc32c(ByteSpan data, std::uint32_t before) {
  static const bool uses_instruction = has_instruction();
  return uses_instruction ? by_instruction(data, before) : crc32c_by_table(data, before);
}

}  // namespace lockstep::internal
