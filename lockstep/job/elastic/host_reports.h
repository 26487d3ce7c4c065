// What an agent tells the first host of its ranks.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/launch/host_watch.h"

namespace lockstep::internal {

// What the ranks do while nothing moves.
void post_sight(Coordinator& coordinator, int generation, HostSight sight);
// The ranks of this host that had been started are dead.
void post_failed_start(Coordinator& coordinator, const StartRanks& start, int ranks, const Error& error);

}  // namespace lockstep::internal
