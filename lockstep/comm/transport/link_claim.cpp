#include "lockstep/comm/transport/link_claim.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::internal {
namespace {

constexpr int kConnectionBits = 32;
constexpr std::uint64_t kUnchecked = std::uint64_t{1} << 63;

void set_tcp_option(int fd, int option, int value) {
  if (::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value) != 0) {
    throw system_error(fmt::format("setting TCP option {} failed", option), errno);
  }
}

}  // namespace

std::uint64_t encode(const LinkClaim& claim) {
  const std::uint64_t number = claim.connection | static_cast<std::uint64_t>(claim.for_data) << kConnectionBits;
  return claim.checksums == Checksums::on ? number : number | kUnchecked;
}

LinkClaim decode_link_claim(std::uint64_t number) {
  return {.connection = static_cast<std::uint32_t>(number),
          .for_data = static_cast<std::size_t>((number & ~kUnchecked) >> kConnectionBits),
          .checksums = (number & kUnchecked) == 0 ? Checksums::on : Checksums::off};
}

std::optional<LinkRefusal> refuse_link(const PeerIdentity& peer, const TcpMeshSettings& settings) {
  const auto here = static_cast<std::size_t>(settings.connections);
  const LinkClaim claim = decode_link_claim(peer.number);
  if (peer.text != settings.name)
    return LinkRefusal{fmt::format("this is group '{}', not '{}'", settings.name, peer.text)};
  if (peer.generation != settings.generation) {
    return LinkRefusal{fmt::format("this is generation {}, not {}", settings.generation, peer.generation)};
  }
  if (peer.world_size != settings.size) {
    return LinkRefusal{fmt::format("this group has {} ranks, not {}", settings.size, peer.world_size)};
  }
  if (peer.rank < 0 || peer.rank >= settings.size || peer.rank == settings.rank) {
    return LinkRefusal{fmt::format("no rank {} connects to rank {} of {}", peer.rank, settings.rank, settings.size)};
  }
  if (claim.for_data != here) {
    return LinkRefusal{
        fmt::format("{} makes {} connections for data where rank {} expects {}: their number (LOCKSTEP_CONNECTIONS, "
                    "GroupOptions::connections) must be the same on all ranks",
                    to_string(peer), claim.for_data, settings.rank, here),
        true};
  }
  if (claim.checksums != settings.checksums) {
    const bool has_them = settings.checksums == Checksums::on;
    return LinkRefusal{
        fmt::format("{} sends its data {} checksums where rank {} expects it {}: this setting "
                    "(LOCKSTEP_CHECKSUMS, GroupOptions::checksums) must be the same on all ranks",
                    to_string(peer), has_them ? "without" : "with", settings.rank, has_them ? "with them" : "without"),
        true};
  }
  if (claim.connection > here) {
    return LinkRefusal{
        fmt::format("there is no connection number {} here: rank {} has {} for data, besides one for control",
                    claim.connection, settings.rank, here)};
  }
  return std::nullopt;
}

HandshakeSettings link_handshake(const TcpMeshSettings& settings, std::uint64_t claim) {
  PeerIdentity mine = local_identity(settings.rank, settings.size, settings.generation);
  mine.number = claim;
  mine.text = settings.name;
  return {settings.token, settings.job_id, Channel::link, mine};
}

bool advance_link_handshake(int fd, Handshake& handshake, int peer, const std::string& group) {
  for (;;) {
    const Bytes output = handshake.take_output();
    // A few hundred bytes fit into the empty buffer of a socket.
    if (send_some(fd, as_span(ByteView(output))) != output.size()) {
      throw Error(ErrorKind::peer_lost, "the peer does not read its handshake");
    }
    if (handshake.over()) break;
    std::byte buffer[256];
    const std::size_t count = recv_some(fd, MutableByteSpan(buffer, std::min(sizeof buffer, handshake.wanted())));
    if (count == 0) return false;
    handshake.feed({reinterpret_cast<const char*>(buffer), count});
  }
  if (handshake.failure()) throw Error(*handshake.failure());
  const PeerIdentity& claims = handshake.peer();
  if (claims.rank == peer && claims.text == group) return true;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("another process answers there: {} of group '{}'", to_string(claims), claims.text));
}

void tune_link(int fd, std::uint32_t connection, Duration host_timeout) {
  if (connection != kControlLink) return tune_tcp(fd, Duration::zero());
  // The kernel looks once a second whether the time is up, hence the second's half that is taken off.
  tune_tcp(fd, host_timeout - std::chrono::milliseconds(500));
  set_tcp_option(fd, TCP_KEEPIDLE, 1);
  set_tcp_option(fd, TCP_KEEPINTVL, 1);
}

}  // namespace lockstep::internal
