#include "lockstep/comm/rendezvous/registration_record.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostInterfaces = 64;
constexpr std::int32_t kLongestHostTimeoutMs = 86'400'000;

}  // namespace

Bytes encode(const Registration& registration) {
  const Member& member = registration.member;
  Bytes out;
  put_u32(out, static_cast<std::uint32_t>(member.rank));
  put_u32(out, static_cast<std::uint32_t>(registration.size));
  put_u32(out, static_cast<std::uint32_t>(member.pid));
  put_bytes(out, member.host);
  put_bytes(out, member.node_id);
  put_bytes(out, member.address);
  put_bytes(out, registration.process);
  put_u32(out, static_cast<std::uint32_t>(registration.host_timeout / std::chrono::milliseconds(1)));
  put_u64(out, member.process_start);
  put_bytes(out, member.gpu);
  const std::span interfaces(member.interfaces.data(), std::min(member.interfaces.size(), kMostInterfaces));
  put_u32(out, static_cast<std::uint32_t>(interfaces.size()));
  for (const Interface& each : interfaces) {
    put_bytes(out, each.name);
    put_bytes(out, each.address);
  }
  return out;
}

Registration decode_registration(ByteView encoded, int rank) {
  WireReader reader(encoded, {"registration", rank});
  const Origin& origin = reader.origin();
  Registration registration;
  const std::int32_t told = reader.i32();
  registration.size = checked_between(reader.i32(), 1, kMostRanks, "world size", origin);
  registration.member.rank =
      rank < 0 ? checked_rank(told, registration.size, origin) : checked_between(told, rank, rank, "rank", origin);
  registration.member.pid = checked_between(reader.i32(), 1, INT_MAX, "process id", origin);
  registration.member.host = reader.bytes();
  registration.member.node_id = reader.bytes();
  registration.member.address = reader.bytes();
  registration.process = reader.bytes();
  registration.host_timeout =
      std::chrono::milliseconds(checked_between(reader.i32(), 1, kLongestHostTimeoutMs, "host timeout in ms", origin));
  registration.member.process_start = reader.u64();
  registration.member.gpu = reader.bytes();
  for (auto left = checked_size(reader.u32(), kMostInterfaces, "number of interfaces", origin); left != 0; --left) {
    std::string name(reader.bytes());
    registration.member.interfaces.push_back({std::move(name), std::string(reader.bytes())});
  }
  reader.expect_end();
  return registration;
}

Bytes encode_members(std::span<const Registration> members) {
  Bytes out;
  for (const Registration& each : members) put_bytes(out, encode(each));
  return out;
}

std::vector<Registration> decode_members(ByteView encoded) {
  WireReader reader(encoded, "the members of a world");
  std::vector<Registration> members;
  while (reader.left() != 0) members.push_back(decode_registration(reader.bytes(), static_cast<int>(members.size())));
  const int size = static_cast<int>(members.size());
  for (const Registration& each : members) checked_between(each.size, size, size, "world size", reader.origin());
  return members;
}

}  // namespace lockstep::internal
