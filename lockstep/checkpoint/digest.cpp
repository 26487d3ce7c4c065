#include "lockstep/checkpoint/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

std::string xxh3_128(ByteSpan bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(kDigestCharacters);
  for (const unsigned char byte : canonical.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::string xxh3_128(ByteView bytes) { return xxh3_128(std::as_bytes(std::span(bytes))); }

}  // namespace lockstep
