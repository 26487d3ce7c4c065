#include "lockstep/comm/collective/announced_calls.h"

#include <cstring>

#include "lockstep/base/checked.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kCallBytes = 2 * sizeof(std::uint32_t) + sizeof(Signature) + kCallReportBytes;
static_assert(kMostAnnouncedCalls * kCallBytes <= kMaxAnnouncementBytes);

}  // namespace

Bytes encode_calls(std::span<const CallSide> calls) {
  Bytes bytes;
  for (const CallSide& call : calls) {
    put_u32(bytes, static_cast<std::uint32_t>(call.rank));
    bytes.append(reinterpret_cast<const char*>(&call.signature), sizeof call.signature);
    put_bytes(bytes, encode(call.account));
  }
  return bytes;
}

std::vector<CallSide> decode_calls(ByteView bytes, int from, int ranks) {
  const Origin origin("announcement", from);
  WireReader reader(bytes, origin);
  std::vector<CallSide> calls;
  do {
    CallSide call;
    call.rank = checked_rank(reader.u32(), ranks, origin);
    std::memcpy(&call.signature, reader.take(sizeof call.signature).data(), sizeof call.signature);
    call.account = decode_call_report(reader.bytes());
    if (call.signature.check != check_of(call.signature)) throw_corrupt(origin, "the signature was damaged");
    calls.push_back(std::move(call));
  } while (reader.left() != 0 && calls.size() < kMostAnnouncedCalls);
  reader.expect_end();
  return calls;
}

}  // namespace lockstep::internal
