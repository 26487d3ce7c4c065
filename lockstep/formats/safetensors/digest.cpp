#include "lockstep/formats/safetensors/digest.h"

#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <xxhash.h>

#include <span>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string digits_of(const unsigned char* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    text.push_back(kDigits[bytes[i] >> 4]);
    text.push_back(kDigits[bytes[i] & 15]);
  }
  return text;
}

std::string digits_of(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return digits_of(canonical.digest, sizeof canonical.digest);
}

void check_sha256(int success) {
  if (success == 1) return;
  throw Error(ErrorKind::internal, "OpenSSL cannot compute SHA-256; is its configuration restricted?");
}

using Sha256 = std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)>;

}  // namespace

std::string xxh3_128(ByteSpan bytes) { return digits_of(XXH3_128bits(bytes.data(), bytes.size())); }

std::string xxh3_128(ByteView bytes) { return xxh3_128(std::as_bytes(std::span(bytes))); }

namespace internal {

struct RunningDigest::State {
  DigestKind kind;
  XXH3_state_t xxh3;
  Sha256 sha256{nullptr, &::EVP_MD_CTX_free};
};

RunningDigest::RunningDigest(DigestKind kind) : state_(std::make_unique<State>()) {
  state_->kind = kind;
  if (kind == DigestKind::xxh3_128) {
    XXH3_128bits_reset(&state_->xxh3);
  } else {
    state_->sha256.reset(::EVP_MD_CTX_new());
    check_sha256(::EVP_DigestInit_ex(state_->sha256.get(), ::EVP_sha256(), nullptr));
  }
}
RunningDigest::RunningDigest(RunningDigest&&) noexcept = default;
RunningDigest& RunningDigest::operator=(RunningDigest&&) noexcept = default;
RunningDigest::~RunningDigest() = default;

void RunningDigest::add(ByteSpan bytes) {
  if (state_->kind == DigestKind::xxh3_128) {
    XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
  } else {
    check_sha256(::EVP_DigestUpdate(state_->sha256.get(), bytes.data(), bytes.size()));
  }
}

std::string RunningDigest::digits() const {
  if (state_->kind == DigestKind::xxh3_128) return digits_of(XXH3_128bits_digest(&state_->xxh3));
  const Sha256 copy(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free);  // its end is the end of what it is asked of
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned count = 0;
  check_sha256(::EVP_MD_CTX_copy_ex(copy.get(), state_->sha256.get()));
  check_sha256(::EVP_DigestFinal_ex(copy.get(), digest, &count));
  return digits_of(digest, count);
}

std::string digest_of(DigestKind kind, ByteView bytes) {
  if (kind == DigestKind::xxh3_128) return xxh3_128(bytes);
  RunningDigest digest(kind);
  digest.add(std::as_bytes(std::span(bytes)));
  return digest.digits();
}

}  // namespace internal
}  // namespace lockstep
