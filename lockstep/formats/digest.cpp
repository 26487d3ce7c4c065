#include "lockstep/formats/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <span>

namespace lockstep {
namespace {

std::string digits_of(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * sizeof canonical.digest);
  for (const unsigned char byte : canonical.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace

std::string xxh3_128(ByteSpan bytes) { return digits_of(XXH3_128bits(bytes.data(), bytes.size())); }

std::string xxh3_128(ByteView bytes) { return xxh3_128(std::as_bytes(std::span(bytes))); }

namespace internal {

struct RunningDigest::State {
  XXH3_state_t xxh3;
};

RunningDigest::RunningDigest() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
RunningDigest::RunningDigest(RunningDigest&&) noexcept = default;
RunningDigest& RunningDigest::operator=(RunningDigest&&) noexcept = default;
RunningDigest::~RunningDigest() = default;

void RunningDigest::add(ByteSpan bytes) { XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size()); }

std::string RunningDigest::digits() const { return digits_of(XXH3_128bits_digest(&state_->xxh3)); }

}  // namespace internal
}  // namespace lockstep
