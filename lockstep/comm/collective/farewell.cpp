#include "lockstep/comm/collective/farewell.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/hash.h"

namespace lockstep::internal {
namespace {

// The marker begins with it, and has it nowhere else: so where a match breaks off, none has begun within it.
constexpr std::byte kFirst{0xA5};

}  // namespace

Marker marker_of(std::uint64_t generation, std::uint64_t sequence, int from, int to) {
  const auto way = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  std::uint64_t words[4] = {splitmix64(splitmix64(splitmix64(generation) ^ sequence) ^ way)};
  for (std::size_t i = 1; i < std::size(words); ++i) words[i] = splitmix64(words[i - 1]);
  Marker marker;
  static_assert(sizeof words == sizeof marker);
  std::memcpy(marker.data(), words, sizeof words);
  std::ranges::replace(marker, kFirst, ~kFirst);
  marker.front() = kFirst;
  return marker;
}

std::vector<std::byte> farewell_of(const Marker& marker, const CallReport& account) {
  std::vector<std::byte> farewell(marker.size() + kCallReportBytes);
  std::ranges::copy(marker, farewell.begin());
  encode(account, std::span(farewell).subspan(marker.size()).first<kCallReportBytes>());
  return farewell;
}

std::span<std::byte> FarewellReader::room() {
  if (is_found()) return std::span(account_).subspan(received_);
  return std::span(read_).first(marker_.size() - matched_);
}

void FarewellReader::take(std::size_t bytes) {
  if (is_found()) {
    received_ += bytes;
    return;
  }
  for (const std::byte byte : std::span(read_).first(bytes)) {
    matched_ = byte == marker_[matched_] ? matched_ + 1 : byte == kFirst ? 1 : 0;
  }
}

std::size_t FarewellReader::take_copy(std::span<const std::byte> bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && !is_complete()) {
    const std::span<std::byte> space = room();
    const std::size_t step = std::min(space.size(), bytes.size() - taken);
    std::memcpy(space.data(), bytes.data() + taken, step);
    take(step);
    taken += step;
  }
  return taken;
}

}  // namespace lockstep::internal
