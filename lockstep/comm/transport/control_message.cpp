#include "lockstep/comm/transport/control_message.h"

#include "lockstep/base/checked.h"
#include "lockstep/comm/health/posted_errors.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

Origin origin_of(int peer) { return {"control message", peer}; }

}  // namespace

Bytes encode(ControlKind kind, GroupId group, std::uint64_t bytes, std::uint64_t rest) {
  Bytes message(1, static_cast<char>(kind));
  put_u64(message, group);
  if (kind == ControlKind::goodbye) put_u64(message, bytes);
  if (kind == ControlKind::goodbye) put_u32(message, static_cast<std::uint32_t>(rest));
  if (kind >= ControlKind::credit) put_u32(message, static_cast<std::uint32_t>(bytes));
  return message;
}

Bytes encode_abort(GroupId group, const Error& error) {
  return encode(ControlKind::abort, group) + encode_error(error);
}

Bytes encode_announcement(GroupId group, const AnnouncementBody& said) {
  Bytes message = encode(ControlKind::announcement, group);
  put_u32(message, static_cast<std::uint32_t>(said.rank));
  put_u32(message, said.number);
  return message.append(said.bytes);
}

AnnouncementBody decode_announcement(ByteView body, int peer, int ranks) {
  WireReader reader(body, origin_of(peer));
  AnnouncementBody said;
  said.rank = checked_rank(reader.i32(), ranks, reader.origin());
  said.number = reader.u32();
  said.bytes = reader.take(reader.left());
  return said;
}

ControlMessage decode_control(ByteView message, int peer) {
  WireReader reader(message, origin_of(peer));
  ControlMessage decoded{checked_enum(reader.u8(), ControlKind::abort, ControlKind::wider, "kind", reader.origin())};
  decoded.group = reader.u64();
  if (decoded.kind == ControlKind::goodbye) decoded.bytes = reader.u64();
  if (decoded.kind == ControlKind::goodbye) decoded.rest = reader.u32();
  if (decoded.kind >= ControlKind::credit) decoded.bytes = reader.u32();
  const bool has_body = decoded.kind == ControlKind::abort || decoded.kind == ControlKind::announcement;
  if (has_body) decoded.body = reader.take(reader.left());
  reader.expect_end();
  return decoded;
}

Error decode_abort(const ControlMessage& message, int peer, int rank, int ranks) {
  return decode_error(message.body, origin_of(peer), rank, ranks);
}

}  // namespace lockstep::internal
