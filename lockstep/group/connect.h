// Connects the ranks of a job as a group: chooses the transport and builds the engine over it. World -> ProcessGroup.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/group/process_group.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

// Blocks until all ranks of the job have connected. Shared memory where all ranks are on one node, else TCP, unless the
// options name one. `name` tells apart the groups of a job. Throws what the transports throw; Error{invalid_argument}
// for one that cannot work.
ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& options,
                           Deadline deadline);

}  // namespace lockstep
