// XXH3-128, which finds damage and does not prove who wrote something. bytes -> 128 bits as 32 lower-case hexadecimal
// digits: what Python's xxhash.xxh3_128_hexdigest gives. Not thread-safe. Never blocks.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep {

std::string xxh3_128(ByteSpan bytes);
std::string xxh3_128(ByteView bytes);

namespace internal {

// The same of bytes that come piece by piece.
class RunningDigest {
 public:
  RunningDigest();
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
