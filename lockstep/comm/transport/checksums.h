// An option of connections.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Checksums : std::uint8_t { on, off };  // of data between ranks on different nodes

}  // namespace lockstep
