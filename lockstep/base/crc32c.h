// CRC-32C (Castagnoli), the checksum of data that crosses a network: by the processor's own instruction where it has
// one. Pure. It finds every flip of up to three bits, and every burst of up to 32, in blocks as long as ours.
#pragma once

#include <cstdint>

#include "lockstep/base/bytes.h"

namespace lockstep {

// `before`: the checksum of what comes in front of the data.
std::uint32_t crc32c(ByteSpan data, std::uint32_t before = 0);

// The same from tables, as processors without the instruction compute it.
std::uint32_t crc32c_by_table(ByteSpan data, std::uint32_t before = 0);

}  // namespace lockstep
