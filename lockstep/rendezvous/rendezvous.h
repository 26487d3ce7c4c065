// Rendezvous: how the processes of a job find each other. environment or URL -> store -> Membership.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/net/token.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Where and as what one process joins. Unset fields are taken from the environment or the URL.
struct JoinOptions {
  // "env://" (default), "tcp://host:port?rank=1&world_size=4", "file:///path?rank=...". Excludes `store`.
  std::string init_method;
  // An existing store; then rank and world_size must be given.
  std::shared_ptr<Store> store;
  std::optional<int> rank;
  std::optional<int> world_size;
  // From start to everyone present.
  Duration timeout = std::chrono::minutes(5);
};

// One process of the job, as it introduced itself.
struct Member {
  int rank = 0;
  std::string host;     // name for messages
  std::string node_id;  // equal exactly for processes that can share memory: boot id, pid, user and ipc namespaces
  std::string address;  // numeric address at which peers may reach this process, "" if all share one node
  int pid = 0;
};

// "rank 2 (host n1, pid 811)"
std::string to_string(const Member& member);

struct Membership {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
  int nodes = 1;
  std::uint64_t generation = 0;  // counts restarts of the job; part of every key, frame and arena
  std::string job_id;
  std::string source;            // "environment RANK, WORLD_SIZE", "tcp://...", "alone"
  Token token;
  std::vector<Member> members;   // by rank
  std::shared_ptr<Store> store;  // keys already prefixed with job and generation; never null
};

using Environment = std::function<const char*(const char* name)>;  // std::getenv's shape

// Joins and waits until all ranks are there. With nothing set anywhere: a world of one, over a memory store.
// Errors within seconds, naming both sides: duplicate rank, different world sizes, other protocol version, wrong token
// (Error{invalid_argument, unauthorized}); Error{timeout} names the ranks that did not come.
Membership join(const JoinOptions& options, const Environment& environment);

}  // namespace lockstep
