// The process that holds a listening TCP port of this host, for error messages. Reads /proc; best effort; never throws.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal {

// "process 811 (python3)"; "" if no process listens or this user may not see it.
std::string describe_port_holder(std::uint16_t port) noexcept;

}  // namespace lockstep::internal
