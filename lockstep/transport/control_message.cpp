#include "lockstep/transport/control_message.h"

#include "lockstep/base/checked.h"
#include "lockstep/health/posted_errors.h"
#include "lockstep/net/wire.h"

namespace lockstep {

Bytes encode(ControlKind kind) { return Bytes(1, static_cast<char>(kind)); }

Bytes encode_abort(const Error& error) {
  Bytes message = encode(ControlKind::abort);
  return message + encode_error(error);
}

ControlMessage decode_control(ByteView message, int peer, int rank, int ranks) {
  WireReader reader(message, {"control message", peer});
  const Origin& origin = reader.origin();
  ControlMessage decoded{checked_enum(reader.u8(), ControlKind::abort, ControlKind::connected, "kind", origin)};
  if (decoded.kind == ControlKind::abort) {
    decoded.error = decode_error(reader.take(reader.left()), origin, rank, ranks);
  }
  reader.expect_end();
  return decoded;
}

}  // namespace lockstep
