// Digests of bytes. XXH3-128 is fast and detects damage; SHA-256 also resists deliberate collisions. Neither proves who
// wrote the bytes. bytes -> lower-case hexadecimal digits, as from Python's xxhash.xxh3_128_hexdigest and
// hashlib.sha256. Not thread-safe. Never blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"

namespace lockstep {

enum class DigestKind : std::uint8_t { xxh3_128, sha_256 };

std::string xxh3_128(ByteSpan bytes);  // 32 digits
std::string xxh3_128(ByteView bytes);  // 32 digits

namespace internal {

struct DigestName {
  DigestKind kind;
  std::string_view text;  // in messages
  std::string_view key;   // in files
  std::size_t digits;
};
// By kind.
inline constexpr std::array<DigestName, 2> kDigests = {
    {{DigestKind::xxh3_128, "XXH3-128", "xxh3", 32}, {DigestKind::sha_256, "SHA-256", "sha256", 64}}};
constexpr const DigestName& name_of(DigestKind kind) { return kDigests[static_cast<std::size_t>(kind)]; }

std::string digest_of(DigestKind kind, ByteView bytes);

// The same for bytes that arrive in pieces.
class RunningDigest {
 public:
  explicit RunningDigest(DigestKind kind = DigestKind::xxh3_128);
  RunningDigest(RunningDigest&&) noexcept;
  RunningDigest& operator=(RunningDigest&&) noexcept;
  ~RunningDigest();

  void add(ByteSpan bytes);
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace internal
}  // namespace lockstep
