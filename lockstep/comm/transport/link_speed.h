// What the kernel has measured of a TCP connection. Never blocks.
#pragma once

#include "lockstep/comm/transport/flow_window.h"

namespace lockstep::internal {

LinkSpeed speed_of(int fd);  // zeros if it cannot be read

}  // namespace lockstep::internal
