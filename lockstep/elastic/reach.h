// Whether another host answers at an address: that it listens there is not needed.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

// Blocks until the deadline at most. A port at which nobody listens answers, too.
bool reaches(const std::string& address, std::uint16_t port, Deadline deadline);

}  // namespace lockstep::internal
