// What a process that is no agent asks a job on several hosts: `lockstep ps` and `lockstep stop`. It needs the job's
// token. Each blocks until the deadline at most; errors: as ask_agent(), and invalid_argument if the job is not there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/elastic/agent_message.h"

namespace lockstep::internal {

struct OutsideJob {
  Endpoint endpoint;
  std::string rdzv_id = "default";
  Token token;
};

struct JobStatus {
  StatusDone job = {};
  std::vector<HostStatus> hosts = {};
};
JobStatus ask_status(const OutsideJob& job, Deadline deadline);

// All ranks are asked to stop. How the job has ended; nothing if it has not by the deadline.
std::optional<Farewell> stop_job(const OutsideJob& job, Deadline deadline);

}  // namespace lockstep::internal
