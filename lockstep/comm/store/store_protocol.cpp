#include "lockstep/comm/store/store_protocol.h"

#include <array>

#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

void put_keys(Bytes& out, const std::vector<std::string>& keys) {
  put_u32(out, static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) put_bytes(out, key);
}

std::vector<std::string> take_keys(WireReader& reader) {
  const std::size_t count = checked_size(reader.u32(), kMaxStoreKeys, "number of keys", reader.origin());
  std::vector<std::string> keys;  // not reserved: the count is the peer's word, the bytes are what it really sent
  for (std::size_t i = 0; i < count; ++i) keys.emplace_back(reader.bytes());
  return keys;
}

}  // namespace

std::string_view to_string(StoreOp op) {
  constexpr std::array<std::string_view, 9> kNames = {"unknown", "set",   "get",    "add",      "compare_set",
                                                      "wait",    "check", "remove", "last_will"};
  return kNames.at(static_cast<std::size_t>(op));
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
  request.op = checked_enum(reader.u8(), StoreOp::set, StoreOp::last_will, "operation", reader.origin());
  request.client = reader.u64();
  request.id = reader.u64();
  request.ended = reader.u64();
  request.age = Duration(reader.i64());
  request.timeout = Duration(reader.i64());
  request.delta = reader.i64();
  request.keys = take_keys(reader);
  request.value = reader.bytes();
  request.expected = reader.bytes();
  reader.expect_end();
  const bool many = request.op == StoreOp::wait || request.op == StoreOp::check;
  if (!many) checked_between(request.keys.size(), 1, 1, "number of keys", reader.origin());
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
  reply.status = checked_enum(reader.u8(), StoreStatus::ok, StoreStatus::error, "status", reader.origin());
  reply.kind = checked_error_kind(reader.u8(), reader.origin());
  reply.value = reader.bytes();
  reply.keys = take_keys(reader);
  reader.expect_end();
  return reply;
}

}  // namespace lockstep::internal
