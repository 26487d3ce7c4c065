// OwnChild is a child of the launcher that is no rank and no orphan: Orphans neither kills nor reaps it. Made and used
// by any one thread, which must live as long as the child should (see ChildProcess).
#pragma once

#include <csignal>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/job/launch/child_process.h"

namespace lockstep::internal {

class OwnChild {
 public:
  // Errors as ChildProcess::start().
  OwnChild(const Command& command, const sigset_t& mask);
  ~OwnChild();
  OwnChild(const OwnChild&) = delete;
  OwnChild& operator=(const OwnChild&) = delete;

  int pidfd() const { return process_->pidfd(); }
  void kill() const noexcept { process_->signal_group(SIGKILL); }
  std::optional<ExitStatus> try_reap() { return process_->try_reap(); }

 private:
  int pid_ = 0;
  std::optional<ChildProcess> process_;
};

// Those that there are. None starts while this lives.
struct OwnChildren {
  std::unique_lock<std::mutex> lock;
  const std::vector<int>& pids;
};
OwnChildren own_children();

}  // namespace lockstep::internal
