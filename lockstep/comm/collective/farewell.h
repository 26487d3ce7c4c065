// How two ranks of a link find the position from which both continue, after they made different calls and one of them,
// or both, have sent a part of their data: each ends with a marker and its account, and discards what arrives before
// the other's marker. Pure; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/collective/call_report.h"

namespace lockstep::internal {

// 32 bytes that data contains with negligible probability only. A different one for each collective and direction.
using Marker = std::array<std::byte, 32>;
Marker marker_of(std::uint64_t generation, std::uint64_t sequence, int from, int to);

// What goes out: the marker, then the account.
std::vector<std::byte> farewell_of(const Marker& marker, const CallReport& account);

// What comes in.
class FarewellReader {
 public:
  explicit FarewellReader(const Marker& marker) : marker_(marker) {}

  // Where the next bytes go. Never reaches beyond the farewell, since what follows belongs to the next collective.
  // Empty once all of it is there.
  std::span<std::byte> room();
  // So many of them have been written there.
  void take(std::size_t bytes);
  // The same for bytes that have been read already; how many of them belong here.
  std::size_t take_copy(std::span<const std::byte> bytes);

  bool is_complete() const { return received_ == account_.size(); }
  // REQUIRES: is_complete().
  CallReport account() const { return decode_call_report(account_); }

 private:
  bool is_found() const { return matched_ == marker_.size(); }

  const Marker marker_;
  Marker read_{};
  std::size_t matched_ = 0;  // bytes of the marker
  std::array<std::byte, kCallReportBytes> account_{};
  std::size_t received_ = 0;
};

}  // namespace lockstep::internal
