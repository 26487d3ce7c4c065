// What a connection of a TCP mesh claims of itself in its handshake, and whether the rank that accepts it admits it.
// LinkClaim -> number -> LinkClaim; PeerIdentity -> refuse_link. Pure, but for tune_link().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

inline constexpr std::uint32_t kControlLink = 0;  // of LinkClaim::connection

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
std::optional<LinkRefusal> refuse_link(const PeerIdentity& peer, const TcpMeshSettings& settings);

HandshakeSettings link_handshake(const TcpMeshSettings& settings, std::uint64_t claim);
// What the rank that connects does of the handshake without waiting; true once it is over. The descriptor does not
// block. Errors: the handshake's; peer_lost; invalid_argument if not `peer` of the group answers.
bool advance_link_handshake(int fd, Handshake& handshake, int peer, const std::string& group);
// The connection for control notices within the host timeout that its peer's host is gone.
void tune_link(int fd, std::uint32_t connection, Duration host_timeout);

}  // namespace lockstep::internal
