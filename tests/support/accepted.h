// The next connection of a listener. Error{timeout} at the deadline.
#pragma once

#include <poll.h>

#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::testing {

using namespace internal;

inline UniqueFd accepted(Listener& listener, Deadline deadline) {
  for (;;) {
    if (UniqueFd fd = listener.accept()) return fd;
    wait_ready(listener.fd(), POLLIN, deadline, "waiting for a connection");
  }
}

}  // namespace lockstep::testing
