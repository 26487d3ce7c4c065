// Where the agents of a job meet: endpoint -> the LocalCoordinator, or a link to it. The first host is the one whose
// address the endpoint names; if several agents are on it, the first to listen there, with node rank 0 if one has asked
// for it. The others connect, and try again until the join timeout. An agent of another job (rdzv id) that holds the
// endpoint says where this one's is gathered.
#pragma once

#include <memory>

#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/elastic/host_output.h"
#include "lockstep/job/launch/signal_relay.h"

namespace lockstep::internal {

struct Met {
  std::unique_ptr<HostOutput> output = {};
  std::unique_ptr<Coordinator> coordinator = {};
  bool is_first = false;
  int stop_signal = 0;  // instead of a coordinator: that told this process to stop
};

// Blocks, but not for a job on this host alone. Errors: timeout (nobody came to the endpoint, or its name stayed
// unknown), invalid_argument (refused, with why; the port is another program's), aborted (refused for something that
// passes, but has not), unauthorized (another token). `listens_first`: false for an agent that has made room for
// another one. `handover`: of the job that goes on, if one does.
Met meet(const AgentOptions& options, SignalRelay& signals, bool listens_first, const Handover& handover = {});

}  // namespace lockstep::internal
