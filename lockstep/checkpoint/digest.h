// Digest is a 128-bit XXH3 fingerprint, as text. It finds damage, not forgery. Pure functions; thread-safe.
#pragma once

#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep {

inline constexpr std::size_t kDigestCharacters = 32;

// 32 lower-case hexadecimal digits: what Python's xxhash.xxh3_128_hexdigest gives.
std::string xxh3_128(ByteSpan bytes);
std::string xxh3_128(ByteView bytes);

}  // namespace lockstep
