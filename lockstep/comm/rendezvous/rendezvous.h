// Rendezvous: how the processes of a job find each other. environment or URL -> store -> Membership.
// join() blocks until all ranks have joined or its timeout; any thread may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/store/store.h"

namespace lockstep {

namespace internal {
class JoinWatch;
struct PeerProcess;
class StoreServer;
}  // namespace internal

// A library that has started the ranks and can send a text from rank 0 to the others before they have joined, as MPI
// can.
struct Bootstrap {
  std::string name = {};  // "MPI"
  int rank = 0;
  int size = 1;
  // Returns rank 0's text on every rank; the other ranks' text is ignored. All ranks call it. Error{timeout}.
  std::function<std::string(const std::string& text, Deadline deadline)> from_rank_zero = {};
};

// Where and as what one process joins. Unset fields are taken from the environment or the URL.
struct JoinOptions {
  // "env://" (default), "tcp://host:port?rank=1&world_size=4", "file:///path?rank=...". Excludes `store`.
  std::string init_method;
  // An existing store of the job; then rank and world_size must be given.
  std::shared_ptr<Store> store;
  std::optional<int> rank;
  std::optional<int> world_size;
  // Unset: LOCKSTEP_TOKEN_FD, else LOCKSTEP_TOKEN_FILE, else the user's own.
  std::optional<Token> token;
  // With env:// and no RANK: called for rank and size.
  std::function<Bootstrap()> bootstrap;
  Duration timeout = std::chrono::minutes(5);  // until all ranks have joined
  // After this time the log names the missing ranks, then at growing intervals.
  Duration notice_after = std::chrono::seconds(30);
  std::string gpu = {};  // as Member::gpu
};

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric
};

// One process of the job, as it registered.
struct Member {
  int rank = 0;
  int job_rank = -1;    // of the job, where `rank` is that of a part; -1: it is the same
  std::string host;     // for messages
  std::string node_id;  // equal exactly for processes that can share memory
  std::string address;  // numeric address at which peers reach this process; loopback if all share one node
  int pid = 0;
  std::uint64_t process_start = 0;         // distinguishes the process from a later one with the same pid; 0: not known
  std::vector<Interface> interfaces = {};  // to choose from, the preferred one first; see probe.h
  std::string gpu = {};                    // UUID of the one that it uses; empty: none, or not known
};

// "rank 2 (host n1, pid 811)"
std::string to_string(const Member& member);
internal::PeerProcess process_of(const Member& member);  // as a JoinWatch takes it

struct Membership {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node_rank = 0;
  int nodes = 1;
  std::uint64_t generation = 0;  // counts restarts of the job; part of every key, frame and arena
  std::string job_id;
  std::string source;  // where rank and size came from: "environment RANK, ...", "tcp://...", "alone"
  Duration host_timeout = internal::kHostTimeout;
  Token token;
  std::vector<Member> members;   // by rank
  std::shared_ptr<Store> store;  // this world's own part of the job's store: keys need no prefix; never null
  // Set on rank 0 if it hosts the store of the others; the store ends with it.
  std::shared_ptr<internal::StoreServer> hosted;
  // Of the hosted store: the last wills of joining ranks have smaller numbers, those of other calls larger ones.
  std::uint64_t next_will = 0;
  std::shared_ptr<internal::JoinWatch> watch;  // sees ranks die until finish_joining()
};

// Waits until all ranks have joined. With nothing set: a world of one, over a memory store.
//   env://             RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; optional LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK.
//                      Without RANK: other launchers' variables, see launchers.h, docs/LAUNCHING.md
//   tcp://host:port    rank 0 hosts the store there, as it does at MASTER_ADDR:MASTER_PORT
//   file:///path       the store is a file that all processes can reach
// The last two take ?rank=1&world_size=4. Besides these, from the environment:
//   LOCKSTEP_LAUNCHER          where rank and size come from, if several sources disagree; "none" for a world of one
//   LOCKSTEP_STORE=host:port   with env://: a launcher hosts the store there, and MASTER_* are not used
//   LOCKSTEP_JOB_ID, LOCKSTEP_GENERATION   else TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, else "default" and 0
//   TORCHELASTIC_USE_AGENT_STORE=True      torchrun has MASTER_PORT: the port above it, or from 32768 on a derived one
//   LOCKSTEP_BIND          the address at which rank 0 listens instead, or "any" for all of its host's
//   LOCKSTEP_ADDRESS       the address that this process advertises, instead of the one it found
//   LOCKSTEP_IFNAME        network interfaces to choose from, "eth0,eth1", instead of all that are up; see probe.h
//   LOCKSTEP_HOST_TIMEOUT  for how many seconds another host may be silent
//   LOCKSTEP_NODE          processes with different values never share memory, as if they ran on different hosts
// Errors within seconds, naming both sides: duplicate rank (the first goes on), different world sizes or host timeouts
// (on every rank), other generation, protocol version or channel (Error{invalid_argument}), wrong token
// (Error{unauthorized}). Error{timeout} names the missing ranks; later ones get Error{aborted}. A rank that dies
// until finish_joining() is Error{peer_lost} on all others: at once on its machine, within 3 s for the rest.
Membership join(const JoinOptions& options, const internal::Environment& environment);

// Which of its host's GPUs a process takes: by LOCKSTEP_LAUNCHER's launcher, LOCAL_RANK, srun, mpirun or flux run, else
// by its rank, with a warning where that may be wrong. Error{invalid_argument} without a GPU.
int local_device(int rank, int device_count, const internal::Environment& environment = internal::process_environment);

// To be called by all ranks after join(), once they have connected: releases what joining needed. The rank with the
// store waits here for the others, so that it may leave right afterwards.
void finish_joining(const Membership& membership, Deadline deadline) noexcept;
// Instead of finish_joining(): ranks that still connect end with this error. Returns the error to throw instead of it,
// as JoinWatch::cause_of(). Blocks for a moment.
Error abandon_joining(const Membership& membership, const Error& error);

}  // namespace lockstep
