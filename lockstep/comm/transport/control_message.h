// Messages of ranks on different hosts besides data, one frame each, over a separate connection.
// message -> bytes -> message. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/checked_stream.h"

namespace lockstep::internal {

inline constexpr std::size_t kMaxControlBytes = 4096;

enum class ControlKind : std::uint8_t {
  abort = 1,  // an error ends the group
  goodbye,    // the sender leaves the group, after this many bytes; the rest of a block may follow
  bell,       // wakes a rank that waits for memory
  connected,  // the sender has connections with all ranks: the first message
  announcement,
  credit,  // this many more bytes may be sent
  wish,    // the window stops the sender, who asks for one of this many bytes
  wider,   // as credit; and the window is this many bytes larger
};

struct ControlMessage {
  ControlKind kind = ControlKind::bell;
  GroupId group = 0;
  std::uint64_t bytes = 0;  // of a goodbye, credit, wish or wider
  std::uint64_t rest = 0;   // of a goodbye: of the block that is under way
  ByteView body = {};       // of an abort, its error; of an announcement; in the message's own memory
};

Bytes encode(ControlKind kind, GroupId group, std::uint64_t bytes = 0, std::uint64_t rest = 0);
Bytes encode_abort(GroupId group, const Error& error);  // its text is cut to what a message holds
// Ranks pass on the announcements of others, which they tell apart by number.
struct AnnouncementBody {
  int rank = -1;  // whose it is
  std::uint32_t number = 0;
  ByteView bytes = {};
};
Bytes encode_announcement(GroupId group, const AnnouncementBody& said);
// From `peer` in a group of `ranks`. Error{corrupt_data} that names it.
AnnouncementBody decode_announcement(ByteView body, int peer, int ranks);
// From `peer`. Error{corrupt_data} that names it.
ControlMessage decode_control(ByteView message, int peer);
// The error of an abort as `rank` of a group of `ranks` has it from `peer`. Error{corrupt_data} that names the peer.
Error decode_abort(const ControlMessage& message, int peer, int rank, int ranks);

}  // namespace lockstep::internal
