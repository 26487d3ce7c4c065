// What a rank writes into the store to register. registration -> bytes -> store -> bytes -> registration. Pure.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

struct Registration {
  Member member;
  int size = 0;   // of the world
  Bytes process;  // a random number of its process
  Duration host_timeout = kHostTimeout;
};

// Keeps the first 64 interfaces.
Bytes encode(const Registration& registration);
// `rank`: whose it must be; -1: any rank's. Error{corrupt_data} that names the rank.
Registration decode_registration(ByteView encoded, int rank);

// The registrations of all ranks of a complete world, by rank.
Bytes encode_members(std::span<const Registration> members);
std::vector<Registration> decode_members(ByteView encoded);

}  // namespace lockstep::internal
