// Makes the CRC-32s in a zip archive's directory right for what its data now is: hardly any mutation would.
#pragma once

#include <zlib.h>

#include <cstddef>

#include "lockstep/base/bytes.h"
#include "tests/unit/formats/pickle_bytes.h"

namespace lockstep::fuzz {

inline std::size_t number_in(ByteView bytes, std::size_t at, std::size_t width) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < width; ++i) number |= std::size_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}

inline void repair_sums(Bytes& bytes) {
  constexpr std::size_t kDirectoryEntry = 46, kLocalHeader = 30;
  for (std::size_t at = bytes.find("PK\1\2"); at != Bytes::npos && at + kDirectoryEntry <= bytes.size();
       at = bytes.find("PK\1\2", at + 4)) {
    const std::size_t local = number_in(bytes, at + 42, 4);
    const std::size_t size = number_in(bytes, at + 20, 4);
    if (local > bytes.size() || bytes.size() - local < kLocalHeader) continue;
    const std::size_t begin = local + kLocalHeader + number_in(bytes, local + 26, 2) + number_in(bytes, local + 28, 2);
    if (begin > bytes.size() || size > bytes.size() - begin) continue;
    const auto sum = ::crc32(0, reinterpret_cast<const unsigned char*>(bytes.data()) + begin, static_cast<uInt>(size));
    bytes.replace(at + 16, 4, testing::little_endian(sum, 4));
  }
}

}  // namespace lockstep::fuzz
