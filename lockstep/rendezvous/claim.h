// What a rank puts into the store to say who it is. claim -> bytes -> store -> bytes -> claim. Pure.
#pragma once

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

struct Claim {
  Member member;
  int size = 0;   // of the world
  Bytes process;  // a random number of its process
};

// Of its interfaces, which others try one by one, the first 64.
Bytes encode(const Claim& claim);
// `rank`: whose it must be; -1: of any. Error{corrupt_data} that names the rank.
Claim decode_claim(ByteView encoded, int rank);

// Why a world failed, for those who come later; only the kind and the text.
Bytes encode_failure(ErrorKind kind, std::string_view text);
Error decode_failure(ByteView encoded);

}  // namespace lockstep
