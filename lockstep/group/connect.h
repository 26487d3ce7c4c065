// Connects the ranks of a job as a group: chooses the transport and builds the engine over it. World -> ProcessGroup.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/group/process_group.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

// Blocks until all ranks of the job have connected. Shared memory where all ranks are on one node, else TCP; Membership::transport
// forces one. `name` tells apart the groups of a job.
ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& options, Deadline deadline);

}  // namespace lockstep
