// SignalRelay turns SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGTSTP into bytes of a pipe that a poll loop reads, for as
// long as it lives. Handlers, not signalfd: in a program with other threads a signal goes to any of them. A signal that
// was ignored (nohup) stays ignored. SIGCHLD gets its default action meanwhile, so that children can be waited for. One
// at a time in a process: a second one throws Error{invalid_argument}.
#pragma once

#include <array>
#include <csignal>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class SignalRelay {
 public:
  SignalRelay();
  ~SignalRelay();  // restores the previous handlers
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  int fd() const { return reader_.get(); }
  // The next signal that arrived; 0 without one. Never blocks.
  int take();

 private:
  static constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCHLD};

  UniqueFd reader_;
  UniqueFd writer_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace lockstep::internal
