#include "lockstep/base/crc32c.h"

#include <doctest/doctest.h>

#include <random>
#include <string_view>
#include <vector>

namespace crc32c_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::uint32_t of_text(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("it is the CRC-32C of RFC 3720, appendix B.4") {
  CHECK(of_text("") == 0);
  CHECK(of_text("123456789") == 0xe3069283);
  CHECK(crc32c(std::vector<std::byte>(32)) == 0x8a9136aa);
  CHECK(crc32c(std::vector<std::byte>(32, std::byte{0xff})) == 0x62a8ab43);
  std::vector<std::byte> rising;
  for (int i = 0; i < 32; ++i) rising.push_back(static_cast<std::byte>(i));
  CHECK(crc32c(rising) == 0x46dd794e);
}

TEST_CASE("instruction and tables agree, for every length, alignment and cut") {
  const std::vector<std::byte> bytes = random_bytes(40'000);
  std::size_t length = 0;
  for (std::size_t step = 1; length<bytes.size() - 8; length += step, step += length> 900 ? 97 : 0) {
    const ByteSpan data = ByteSpan(bytes).subspan(length % 8, length);
    const std::uint32_t whole = crc32c(data);
    REQUIRE(whole == crc32c_by_table(data));
    const std::size_t cut = length / 3;
    REQUIRE(crc32c(data.subspan(cut), crc32c(data.first(cut))) == whole);
  }
}

TEST_CASE("a flipped bit changes it, wherever it is") {
  std::vector<std::byte> bytes = random_bytes(20'000);
  const std::uint32_t right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += 41) {
    const auto flip = static_cast<std::byte>(1 << bit % 8);
    bytes[bit / 8] ^= flip;
    REQUIRE(crc32c(bytes) != right);
    bytes[bit / 8] ^= flip;
  }
}

}  // namespace crc32c_test
