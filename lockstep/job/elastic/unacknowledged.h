// For how long the kernel of another host has not acknowledged data on a TCP connection. It acknowledges for a stopped
// process, too; a kernel that does not is gone or receives nothing, even if data from it still arrives.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

class Unacknowledged {
 public:
  static constexpr Duration kGap = std::chrono::seconds(1);

  struct Sent {
    std::uint64_t acknowledged = 0;  // bytes, since the connection began
    bool waits = false;              // more was sent than that, and the other has room for it
  };
  // By TCP_INFO. On a kernel without it, nothing waits.
  static Sent sent_by(int fd);

  // A look at the connection. At most one period of looks is missed of a silence that begins in between, and a caller
  // that was stopped itself misses no acknowledgement.
  void look(const Sent& sent, TimePoint now);
  // Zero: all was acknowledged, or something just now.
  Duration lasts(TimePoint now) const { return since_ ? now - *since_ : Duration{}; }
  // When such a silence of more than kGap was last seen: for a while after it, the network may still be catching up.
  TimePoint last_gap() const { return last_gap_; }

 private:
  std::uint64_t acknowledged_ = 0;
  std::optional<TimePoint> since_;
  TimePoint last_gap_;
};

}  // namespace lockstep::internal
