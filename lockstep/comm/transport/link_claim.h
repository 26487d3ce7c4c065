// What a connection of a TCP mesh claims of itself in its handshake, and whether the rank that accepts it admits it.
// LinkClaim -> number -> LinkClaim; PeerIdentity -> admit_link. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

// As it travels in PeerIdentity::number. Both ends must want the same, but for `connection`.
struct LinkClaim {
  std::uint32_t connection = 0;  // of the pair: 0 for control, else 1 + the index of one for data
  std::size_t for_data = 0;      // how many for data its sender makes
  Checksums checksums = Checksums::on;
};
std::uint64_t encode(const LinkClaim& claim);
LinkClaim decode_link_claim(std::uint64_t number);

// Why a connection is refused.
struct LinkRefusal {
  std::string reason;
  bool is_mismatch = false;  // of options: the rank that connects gives up, so this one must not wait for it
};
// here: how many connections for data this rank has with that one.
std::optional<LinkRefusal> refuse_link(const PeerIdentity& peer, std::size_t here, const TcpMeshSettings& settings);

}  // namespace lockstep::internal
