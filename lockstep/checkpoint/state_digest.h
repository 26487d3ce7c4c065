// The SHA-256 of a checkpoint's tensors: two runs have the same one if and only if they stand at the same bits.
// checkpoint -> 64 hexadecimal digits. Does not block. Error{internal}: OpenSSL refuses to compute it.
#pragma once

#include <string>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep {

// Over name, type, shape and contents of all tensors, in the order of their names. Metadata does not count.
std::string sha256_of(const Checkpoint& checkpoint);

}  // namespace lockstep
