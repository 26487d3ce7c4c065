// Connects the ranks of a job as a group: chooses the transport and builds the engine over it. World -> ProcessGroup.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/group/meshes.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

// Blocks until all ranks of the job have connected: over the backend that the options name, or over the transport that
// they name or the first that these ranks can use, see transports.h. `name` differs between the groups of a job. Throws
// what the transports throw; Error{invalid_argument} for one that cannot work.
ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& options,
                           Deadline deadline);

// Applies LOCKSTEP_TRANSPORT, LOCKSTEP_CONNECTIONS and LOCKSTEP_CHECKSUMS, if the program leaves the choice open.
// Error{invalid_argument} quotes invalid values, of the program as well.
GroupOptions with_environment(GroupOptions options);
// "backend native, transport tcp": what ranks must agree on to connect.
std::string describe_choices(const GroupOptions& options);

// What a group remembers for its parts.
struct GroupOrigin {
  Membership membership;
  std::string name;
  std::weak_ptr<StoreServer> hosted = {};  // of the world, as long as that lives
  GroupConnections connections = {};
};

// connect_group() without its checks, and without notifying the other ranks if it fails. known: connections of these
// ranks that the group may share.
ProcessGroup connect_ranks(const Membership& membership, const std::string& name, GroupOptions options,
                           const GroupConnections& known, Deadline deadline);

}  // namespace lockstep::internal
