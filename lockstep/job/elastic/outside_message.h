// What a program that is no agent of a job asks its first host, and the answers; a part of agent_message.h. Values.
#pragma once

#include <string>

namespace lockstep::internal {

// From outside (no agent of the job): asks what its ranks do. Answered with a HostStatus of each host and, when
// all have answered, a StatusDone; or with Elsewhere.
struct AskStatus {
  std::string rdzv_id = {};
};
// From the first host: say what your ranks do.
struct TellStatus {};
struct HostStatus {
  std::string host = {};
  std::string ranks = {};  // as of ranks_as_json(); empty: not known
};
struct StatusDone {
  std::string job_id = {};
  int world_size = 1;  // of the attempt
};
// From outside: as SIGINT to the first host. Answered with a Welcome and, at
// the end of the job, its Farewell; or with Elsewhere.
struct StopJob {
  std::string rdzv_id = {};
};

}  // namespace lockstep::internal
