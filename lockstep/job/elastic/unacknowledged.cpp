#include "lockstep/job/elastic/unacknowledged.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

namespace lockstep::internal {

// A packet that this host cannot send, for want of a route, is not in the count of the unacknowledged ones. With no
// room at the other end a stopped process does not read, and its kernel answers probes.
Unacknowledged::Sent Unacknowledged::sent_by(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const bool is_stuck = info.tcpi_notsent_bytes != 0 && info.tcpi_snd_wnd != 0;
  return {.acknowledged = info.tcpi_bytes_acked, .waits = info.tcpi_unacked != 0 || is_stuck};
}

void Unacknowledged::look(const Sent& sent, TimePoint now) {
  if (lasts(now) > kGap) last_gap_ = now;
  const bool is_new = sent.acknowledged != std::exchange(acknowledged_, sent.acknowledged);
  if (!sent.waits || is_new) since_.reset();
  if (sent.waits && !since_) since_ = now;
}

}  // namespace lockstep::internal
