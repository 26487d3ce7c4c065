// CRC-32C (Castagnoli), the checksum of data that crosses a network, computed by the processor's own instruction if
// there is one. Pure. It finds every flip of up to three bits, and every burst of up to 32, in blocks as long as ours.
#pragma once

#include <cstdint>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// `before`: the checksum of the data before this.
std::uint32_t crc32c(ByteSpan data, std::uint32_t before = 0);

// The same from tables, for processors without the instruction.
std::uint32_t crc32c_by_table(ByteSpan data, std::uint32_t before = 0);

}  // namespace lockstep::internal
