#include "lockstep/transport/control_message.h"

#include "lockstep/base/checked.h"
#include "lockstep/net/wire.h"

namespace lockstep {

Bytes encode(ControlKind kind) { return Bytes(1, static_cast<char>(kind)); }

Bytes encode_abort(const Error& error) {
  Bytes message = encode(ControlKind::abort);
  put_u8(message, static_cast<std::uint8_t>(error.kind()));
  put_u32(message, static_cast<std::uint32_t>(error.detail().peer));
  message += std::string_view(error.what()).substr(0, kMaxControlBytes - message.size());
  return message;
}

ControlMessage decode_control(ByteView message, int peer, int rank, int ranks) {
  WireReader reader(message, {"control message", peer});
  const Origin& origin = reader.origin();
  ControlMessage decoded{checked_enum(reader.u8(), ControlKind::abort, ControlKind::connected, "kind", origin)};
  if (decoded.kind == ControlKind::abort) {
    const ErrorKind kind = checked_error_kind(reader.u8(), origin);
    const int culprit = checked_rank_or_none(reader.i32(), ranks, origin);
    decoded.error.emplace(kind, std::string(reader.take(reader.left())), ErrorDetail{.rank = rank, .peer = culprit});
  }
  reader.expect_end();
  return decoded;
}

}  // namespace lockstep
