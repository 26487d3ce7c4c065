#include "lockstep/comm/transport/link_speed.h"

// Not netinet/tcp.h, whose tcp_info lacks the rate.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>

namespace lockstep::internal {

LinkSpeed speed_of(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return {static_cast<double>(info.tcpi_delivery_rate), std::chrono::microseconds(info.tcpi_rtt)};
}

}  // namespace lockstep::internal
