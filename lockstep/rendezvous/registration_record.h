// What a rank puts into the store to say who it is. claim -> bytes -> store -> bytes -> claim. Pure.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

struct Registration {
  Member member;
  int size = 0;   // of the world
  Bytes process;  // a random number of its process
};

// Of its interfaces, which others try one by one, the first 64.
Bytes encode(const Registration& claim);
// `rank`: whose it must be; -1: of any. Error{corrupt_data} that names the rank.
Registration decode_registration(ByteView encoded, int rank);

// Of a world that has met: the claims of all its ranks, by rank.
Bytes encode_members(std::span<const Registration> members);
std::vector<Registration> decode_members(ByteView encoded);

}  // namespace lockstep
