// Agent is an agent's life: meeting -> (start -> ranks of this host -> done)* -> farewell. It starts the ranks of its
// host when the first host says so, ends them when it says so or is lost, and reports how they ended. The first host's
// agent is told so by the coordinator in its own process (local_coordinator.h: `inbox_`), without a connection; that is
// all there is in a job on one host.
#pragma once

#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/launch/signal_relay.h"

namespace lockstep::internal {

// Blocks until the job is over. `signals`: those of the process, which ask to stop. The exit code is the same on all
// hosts that the job ends with; kRendezvousExitCode on those that have lost the first host. Errors as meet(), LocalJob.
AgentResult run_agent(const AgentOptions& options, SignalRelay& signals);

}  // namespace lockstep::internal
