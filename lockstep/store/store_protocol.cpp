#include "lockstep/store/store_protocol.h"

#include "lockstep/base/format.h"
#include "lockstep/net/wire.h"

namespace lockstep {
namespace {

void put_keys(Bytes& out, const std::vector<std::string>& keys) {
  put_u32(out, static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) put_bytes(out, key);
}

std::vector<std::string> take_keys(WireReader& reader) {
  const std::uint32_t count = reader.u32();
  std::vector<std::string> keys;  // not reserved: the count is the peer's word, the bytes are what it really sent
  for (std::uint32_t i = 0; i < count; ++i) keys.emplace_back(reader.bytes());
  return keys;
}

Error unknown(std::string_view what, unsigned value) {
  return Error(ErrorKind::corrupt_data, fmt::format("a store message has an unknown {} {}", what, value));
}

}  // namespace

std::string_view to_string(StoreOp op) {
  switch (op) {
    case StoreOp::set: return "set";
    case StoreOp::get: return "get";
    case StoreOp::add: return "add";
    case StoreOp::compare_set: return "compare_set";
    case StoreOp::wait: return "wait";
    case StoreOp::check: return "check";
    case StoreOp::remove: return "remove";
    case StoreOp::last_will: return "last_will";
  }
  return "unknown";
}

Bytes encode(const StoreRequest& request) {
  Bytes out;
  put_u8(out, static_cast<std::uint8_t>(request.op));
  put_u64(out, request.client);
  put_u64(out, request.id);
  put_u64(out, request.ended);
  put_u64(out, static_cast<std::uint64_t>(request.age.count()));
  put_u64(out, static_cast<std::uint64_t>(request.timeout.count()));
  put_u64(out, static_cast<std::uint64_t>(request.delta));
  put_keys(out, request.keys);
  put_bytes(out, request.value);
  put_bytes(out, request.expected);
  return out;
}

StoreRequest decode_store_request(ByteView encoded) {
  WireReader reader(encoded, "a store request");
  StoreRequest request;
  const std::uint8_t op = reader.u8();
  request.op = static_cast<StoreOp>(op);
  if (op < static_cast<std::uint8_t>(StoreOp::set) || op > static_cast<std::uint8_t>(StoreOp::last_will)) {
    throw unknown("operation", op);
  }
  request.client = reader.u64();
  request.id = reader.u64();
  request.ended = reader.u64();
  request.age = Duration(static_cast<std::int64_t>(reader.u64()));
  request.timeout = Duration(static_cast<std::int64_t>(reader.u64()));
  request.delta = static_cast<std::int64_t>(reader.u64());
  request.keys = take_keys(reader);
  request.value = reader.bytes();
  request.expected = reader.bytes();
  reader.expect_end();
  const bool many = request.op == StoreOp::wait || request.op == StoreOp::check;
  if (!many && request.keys.size() != 1) throw unknown("number of keys", static_cast<unsigned>(request.keys.size()));
  return request;
}

Bytes encode(const StoreReply& reply) {
  Bytes out;
  put_u64(out, reply.id);
  put_u8(out, static_cast<std::uint8_t>(reply.status));
  put_u8(out, static_cast<std::uint8_t>(reply.kind));
  put_bytes(out, reply.value);
  put_keys(out, reply.keys);
  return out;
}

StoreReply decode_store_reply(ByteView encoded) {
  WireReader reader(encoded, "a store reply");
  StoreReply reply;
  reply.id = reader.u64();
  const std::uint8_t status = reader.u8();
  const std::uint8_t kind = reader.u8();
  if (status > static_cast<std::uint8_t>(StoreStatus::error)) throw unknown("status", status);
  if (kind > static_cast<std::uint8_t>(ErrorKind::internal)) throw unknown("error kind", kind);
  reply.status = static_cast<StoreStatus>(status);
  reply.kind = static_cast<ErrorKind>(kind);
  reply.value = reader.bytes();
  reply.keys = take_keys(reader);
  reader.expect_end();
  return reply;
}

}  // namespace lockstep
