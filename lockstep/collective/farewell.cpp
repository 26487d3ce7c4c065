#include "lockstep/collective/farewell.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

// The marker begins with it, and has it nowhere else: so where a match breaks off, none has begun within it.
constexpr std::byte kFirst{0xA5};

// Sebastiano Vigna's splitmix64.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

Marker marker_of(std::uint64_t generation, std::uint64_t sequence, int from, int to) {
  const auto way = static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  std::uint64_t words[4] = {mixed(mixed(mixed(generation) ^ sequence) ^ way)};
  for (std::size_t i = 1; i < std::size(words); ++i) words[i] = mixed(words[i - 1]);
  Marker marker;
  static_assert(sizeof words == sizeof marker);
  std::memcpy(marker.data(), words, sizeof words);
  std::ranges::replace(marker, kFirst, ~kFirst);
  marker.front() = kFirst;
  return marker;
}

std::vector<std::byte> farewell_of(const Marker& marker, const CallAccount& account) {
  std::vector<std::byte> farewell(marker.size() + kAccountBytes);
  std::ranges::copy(marker, farewell.begin());
  encode(account, std::span(farewell).subspan(marker.size()).first<kAccountBytes>());
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

}  // namespace lockstep
