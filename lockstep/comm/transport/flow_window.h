// The receive window of a group with a peer: how much the peer may send beyond what the group has taken. It begins
// small, since data of a group that does not read are kept in memory, and grows while it limits the flow: to three
// times what the connections carry in a round trip. Once for what is on its way; and the reports of what was taken, a
// quarter of a window each, and the measured speed of a flow that grows are late. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

inline constexpr std::size_t kFirstWindow = std::size_t{1} << 20;
inline constexpr std::size_t kLargestWindow = std::size_t{128} << 20;

// Of the connections between two ranks, as the kernel measures it.
struct LinkSpeed {
  double bytes_per_second = 0;  // of all of them
  Duration round_trip{};
};

// What a sender that the window stops asks for; the same as `window` if a larger one would not help.
inline std::size_t wanted_window(std::size_t window, const LinkSpeed& speed) {
  const double bytes = 3 * speed.bytes_per_second * seconds(speed.round_trip);
  const double most = static_cast<double>(kLargestWindow);
  return std::max(window, static_cast<std::size_t>(std::min(bytes, most)));
}

// What a receiver grants: nothing more to a sender that its group does not keep up with.
inline std::size_t granted_window(std::size_t window, std::size_t wanted, std::size_t unread) {
  if (unread > window / 2) return window;
  return std::clamp(wanted, window, kLargestWindow);
}

}  // namespace lockstep::internal
