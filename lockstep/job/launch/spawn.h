// Starts the ranks of a job from inside a program, by executing the program again. launcher -> store -> rendezvous.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep {

struct SpawnOptions {
  int nprocs = 0;                         // 0: one per available core
  std::string name = "main";              // distinguishes several spawn() calls in one program
  std::chrono::milliseconds grace{5000};  // from SIGTERM to SIGKILL when a rank has failed
  int threads_per_rank =
      0;  // OMP_NUM_THREADS of each rank; 0: the value of this process, else cores / nprocs, at least 1
  bool prefix_output = false;  // "[rank] " before every line of a rank
};

// A rank threw ("rank 1 (pid 811) raised: boom"), exited with a code other than 0, was killed by a signal, or never
// reached the spawn() call. Kind: peer_lost.
class ProcessFailed : public Error {
 public:
  ProcessFailed(const std::string& message, int rank, int pid, int exit_code, int signal);
  int rank() const { return detail().rank; }
  int pid() const { return pid_; }
  int exit_code() const { return exit_code_; }  // -1 if a signal ended it
  int signal() const { return signal_; }        // 0 if it exited

 private:
  int pid_;
  int exit_code_;
  int signal_;
};

// In the process that the user started: starts `nprocs` copies of this program with the same arguments and the standard
// environment (RANK, WORLD_SIZE, LOCAL_RANK, ..., and the job's token), waits for all, and returns. The first failure
// ends the others and is thrown as ProcessFailed. In a copy: runs worker(rank) and exits the process, so code after
// the call runs only in the parent, and code before it runs in every process. A copy skips spawn() calls that are not
// its own: calls with another name, and earlier ones with the same name. SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed
// on to the ranks; once these have ended, this process gets the signal too, and if it survives, Error{aborted} is
// thrown. Standard input goes to rank 0 unless it is a terminal. REQUIRES: one spawn() at a time; no other code of this
// process reaps its children; the copies take the same path to this call.
void spawn(int argc, char** argv, const std::function<void(int rank)>& worker, const SpawnOptions& options = {});

// Ranks that run while the program continues. Not thread-safe. The destructor stops those that still run, and waits.
class SpawnHandle {
 public:
  SpawnHandle();  // empty
  ~SpawnHandle();
  SpawnHandle(SpawnHandle&&) noexcept;
  SpawnHandle& operator=(SpawnHandle&&) noexcept;

  // By rank.
  const std::vector<int>& pids() const;
  // Waits until all have ended and returns true; false at the deadline, and they run on. Throws as spawn() does, on
  // each call.
  bool join(Deadline deadline = Deadline::never()) const;
  // Stops those that still run: SIGTERM, and SIGKILL after the grace, or at once on a second call. Not a failure.
  // Does not wait.
  void terminate() const;

 private:
  struct State;
  explicit SpawnHandle(std::unique_ptr<State> state);
  friend SpawnHandle spawn_async(int argc, char** argv, const std::function<void(int rank)>& worker,
                                 const SpawnOptions& options);

  std::unique_ptr<State> state_;
};

// As spawn(), but returns as soon as all ranks have been started. A copy that skips the call gets an empty handle.
[[nodiscard]] SpawnHandle spawn_async(int argc, char** argv, const std::function<void(int rank)>& worker,
                                      const SpawnOptions& options = {});

}  // namespace lockstep
