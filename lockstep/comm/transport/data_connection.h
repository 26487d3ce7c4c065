// One of the connections for data to a peer. TcpPeer -> DataConnection. One thread at a time.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport/checked_stream.h"

namespace lockstep::internal {

struct DataConnection {
  UniqueFd fd;
  CheckedSender sender;
  CheckedReceiver receiver;
  // Whether to try, as far as is known: events set them, "not now" clears them.
  bool readable = true;
  bool writable = true;

  // As epoll reports them, edge-triggered.
  void note(std::uint32_t events) {
    const std::uint32_t over = EPOLLHUP | EPOLLERR;
    if ((events & (EPOLLIN | EPOLLRDHUP | over)) != 0) readable = true;
    if ((events & (EPOLLOUT | over)) != 0) writable = true;
  }
};

}  // namespace lockstep::internal
