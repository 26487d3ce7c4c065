// A JoinPlan says how one process joins, derived from its arguments, the URL and the environment alone. options,
// environment -> JoinPlan -> join(). Pure: no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep::internal {

inline constexpr const char* kDefaultJobId = "default";

inline constexpr const char* kAlone = "alone";  // JoinPlan::source if nothing is set

enum class Meeting {
  alone,        // a world of one
  given_store,  // in JoinOptions::store
  file,         // in a file store at `path`
  launcher,     // in the store that a launcher hosts at `endpoint`
  rank_zero,    // in the store that rank 0 hosts at `endpoint`
  bootstrap,    // as rank_zero; JoinOptions::bootstrap gives rank and size, and sends the endpoint
};

struct JoinPlan {
  Meeting rendezvous = Meeting::alone;
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank, local_size, node_rank;
  Endpoint endpoint;
  std::string bind_host;  // where rank 0 listens
  std::string path;
  std::string job_id;
  std::uint64_t generation = 0;
  std::string source;
  bool launched = false;             // by a launcher other than Lockstep's; the source names it
  std::optional<int> job_fd;         // the endpoint's port and the job are derived from the process at its other end
  std::optional<int> expected_size;  // with bootstrap: what a launcher says
  std::string advice;                // for the user, if a setting may be a mistake
  std::optional<int> token_fd;
  std::string token_file;
  std::string address;     // LOCKSTEP_ADDRESS
  std::string interfaces;  // LOCKSTEP_IFNAME
  std::string node_label;  // LOCKSTEP_NODE
  Duration host_timeout = kHostTimeout;
};

// Error{invalid_argument} names each missing or malformed variable or argument.
JoinPlan plan_join(const JoinOptions& options, const Environment& environment);

}  // namespace lockstep::internal
