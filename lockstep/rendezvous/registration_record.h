// What a rank writes into the store to register. registration -> bytes -> store -> bytes -> registration. Pure.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

struct Registration {
  Member member;
  int size = 0;   // of the world
  Bytes process;  // a random number of its process
};

// Keeps the first 64 interfaces.
Bytes encode(const Registration& registration);
// `rank`: whose it must be; -1: any rank's. Error{corrupt_data} that names the rank.
Registration decode_registration(ByteView encoded, int rank);

// The registrations of all ranks of a complete world, by rank.
Bytes encode_members(std::span<const Registration> members);
std::vector<Registration> decode_members(ByteView encoded);

// Why a world failed, for those who wait in it or come later: the kind, the text (its first 2048 bytes) and the rank
// that it is about, -1 for none. `rank` reads it. That rank may be of a larger world than the reader's.
Bytes encode_error(ErrorKind kind, std::string_view text, int about);
Error decode_error(ByteView encoded, int rank);

}  // namespace lockstep
