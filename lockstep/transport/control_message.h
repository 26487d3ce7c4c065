// What ranks on different hosts tell each other besides data, one frame a message, over a connection of its own.
// message -> bytes -> message. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"

namespace lockstep {

inline constexpr std::size_t kMaxControlBytes = 4096;

enum class ControlKind : std::uint8_t {
  abort = 1,  // this error ends the group
  goodbye,    // the sender leaves
  bell,       // wakes a rank that waits for memory
  connected,  // the sender has connections with all ranks: the first message
};

struct ControlMessage {
  ControlKind kind = ControlKind::bell;
  std::optional<Error> error = {};  // of an abort
};

Bytes encode(ControlKind kind);
Bytes encode_abort(const Error& error);  // its text is cut to what a message holds
// As `rank` of `ranks` has it from `peer`. Error{corrupt_data} that names the peer.
ControlMessage decode_control(ByteView message, int peer, int rank, int ranks);

}  // namespace lockstep
