// What a rank puts into the store to say who it is. claim -> bytes -> store -> bytes -> claim. Pure.
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

// Of its interfaces, which others try one by one, the first 64.
Bytes encode(const Registration& claim);
// `rank`: whose it must be; -1: of any. Error{corrupt_data} that names the rank.
Registration decode_registration(ByteView encoded, int rank);

// Of a world that has met: the claims of all its ranks, by rank.
Bytes encode_members(std::span<const Registration> members);
std::vector<Registration> decode_members(ByteView encoded);

// Why a world failed, for those who wait in it or come later: the kind, the text (its first 2048 bytes) and the rank
// that it is about, -1 for none. `rank` reads it. That rank may be of a larger world than the reader's.
Bytes encode_error(ErrorKind kind, std::string_view text, int about);
Error decode_error(ByteView encoded, int rank);

}  // namespace lockstep
