#include "lockstep/comm/transport/link_claim.h"

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr int kConnectionBits = 32;
constexpr std::uint64_t kUnchecked = std::uint64_t{1} << 63;

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

std::optional<LinkRefusal> refuse_link(const PeerIdentity& peer, std::size_t here, const TcpMeshSettings& settings) {
  const LinkClaim claim = decode_link_claim(peer.number);
  if (peer.text != settings.name)
    return LinkRefusal{fmt::format("this is mesh '{}', not '{}'", settings.name, peer.text)};
  if (peer.generation != settings.generation) {
    return LinkRefusal{fmt::format("this is generation {}, not {}", settings.generation, peer.generation)};
  }
  if (peer.world_size != settings.size) {
    return LinkRefusal{fmt::format("this mesh has {} ranks, not {}", settings.size, peer.world_size)};
  }
  if (peer.rank <= settings.rank || peer.rank >= settings.size) {
    return LinkRefusal{fmt::format("only ranks {} to {} connect to rank {}, not rank {}", settings.rank + 1,
                                   settings.size - 1, settings.rank, peer.rank)};
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

}  // namespace lockstep::internal
