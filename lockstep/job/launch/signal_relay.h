// SignalRelay turns signals that ask a launcher to stop, and SIGTSTP, into bytes of a pipe that a poll loop reads, for
// as long as it lives. Handlers, not signalfd: in a program with other threads a signal goes to any of them. A signal
// that was ignored (nohup) stays ignored. SIGCHLD gets its default action meanwhile, so that children can be waited
// for. One at a time in a process: a second one throws Error{invalid_argument}.
#pragma once

#include <csignal>
#include <utility>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class SignalRelay {
 public:
  static const std::vector<int>& stop_signals();  // SIGTERM, SIGINT, SIGHUP, SIGQUIT

  explicit SignalRelay(const std::vector<int>& asking_to_stop = stop_signals());
  // Restores the previous handlers, unless the program has installed others since. A signal that nobody has taken is
  // raised again. In a forked child the previous handlers apply at once.
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  int fd() const { return reader_.get(); }
  // The next signal that arrived; 0 without one. Never blocks.
  int take();

 private:
  UniqueFd reader_;
  UniqueFd writer_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace lockstep::internal
