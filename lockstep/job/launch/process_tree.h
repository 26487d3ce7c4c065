// ProcessTree starts the ranks of a job on this machine and watches them until all have ended: it merges their output,
// passes signals on, and when one rank fails it ends the others. launcher -> (ranks: store -> rendezvous -> World).
// When one rank has failed, the ranks that failed because of it get a moment to end before the others are told to stop
// (SIGTERM, and SIGKILL after the grace): see Outcome::first_failure(). Its processes never outlive it, even after an
// exception or SIGKILL (see reaper.h, orphans.h). Use from one thread, which must live until the call returns.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_output.h"
#include "lockstep/job/launch/signal_relay.h"
#include "lockstep/job/launch/tree_guest.h"

namespace lockstep::internal {

// Who writes output of ranks that a slow reader has not taken yet.
enum class Backlog {
  of_tree,    // it returns once all is written; 1 s after the ranks have ended if they were asked to stop
  of_caller,  // later
};

// Who becomes the parent of a process whose parent has ended: see orphans.h.
enum class Adoption { by_init, by_launcher };

struct TreeOptions {
  std::chrono::milliseconds grace{5000};        // from SIGTERM to SIGKILL after a failure
  std::chrono::milliseconds stop_grace{25000};  // from a request to stop to SIGKILL
  std::string job_id{};                         // what LOCKSTEP_JOB_ID says in the ranks' environment
  int first_rank = 0;                           // of those that are started here
  const sigset_t* mask = nullptr;               // borrowed: the ranks' blocked signals; null: those of the caller
  RankOutput* output = nullptr;  // borrowed; null: ranks write to the caller's own standard output and error
  Backlog backlog = Backlog::of_tree;
  Adoption adoption = Adoption::by_init;
  // Whether a rank with this exit status failed, why, and because of which rank; an empty text if it did not fail.
  // Default: every status but ok() is the rank's own failure.
  std::function<Failure(int rank, const ExitStatus& status)> judge{};
  // Called once all have been started.
  std::function<void(const std::vector<int>& pids)> started{};
  // Borrowed, not blocking; -1: none. Each time that it can be read, the ranks are told to stop, the second time
  // killed.
  int stop_fd = -1;
  SignalRelay* signals = nullptr;    // borrowed; null: one of its own, for as long as it runs
  std::vector<TreeGuest*> guests{};  // borrowed
};

// Starts one process per command (and sets its stdout_fd and stderr_fd if there is an output) and blocks until all have
// ended. SIGTERM, SIGINT, SIGHUP and SIGQUIT to the caller are a request to stop: each rank's process gets the signal,
// but not what it has started, and ends within the stop grace. A second one kills them, unless it is another than
// SIGINT and comes within a second: batch systems and launchers send one signal more than once. Throws ExecFailed or
// Error{internal} if a rank cannot be started; those already started are then killed.
Outcome run_process_tree(std::vector<Command> commands, const TreeOptions& options);

}  // namespace lockstep::internal
