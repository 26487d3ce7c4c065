#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/group/transports.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

Topology topology_of(const Membership& membership) {
  std::vector<int> node_of;
  for (const Member& member : membership.members) {
    const auto same = std::ranges::find(membership.members, member.node_id, &Member::node_id);
    node_of.push_back(static_cast<int>(same - membership.members.begin()));
  }
  return Topology(node_of);
}

// If TCP is not required, ranks of one node use shared memory.
Connected connect_by_links(const RanksToConnect& ranks) {
  const auto& [membership, name, known, own, deadline, options] = ranks;
  if (known.collectives.serve(options)) own.collectives = known.collectives;
  if (known.messages.serve(options)) own.messages = known.messages;
  auto collectives = mesh_between_hosts(membership, name, options, own.collectives, deadline);
  std::unique_ptr<Mesh> messages;
  try {
    GroupOptions likewise = options;
    if (collectives->name() == "tcp") likewise.transport = kTcpTransport;  // no memory then, and no second warning
    messages = message_mesh_between_hosts(membership, name, likewise, own.messages, deadline);
  } catch (const Error& error) {
    // Ranks that have both may run a collective already, and would see no more than that this one leaves.
    const Error cause = membership.watch == nullptr ? error : membership.watch->cause_of(error);
    collectives->abort(error_for_peers(collectives->peer_name(membership.rank), membership.rank, cause));
    throw cause;
  }
  Topology topology = ranks.is_required() ? Topology(membership.size) : topology_of(membership);
  return {std::make_unique<LinkEngine>(std::move(collectives), membership.generation, std::move(topology)),
          std::move(messages)};
}

}  // namespace

TransportEntry tcp_transport() {
  return {
      .name = std::string(kTcpTransport), .description = "connections between all ranks", .connect = connect_by_links};
}

}  // namespace lockstep::internal
