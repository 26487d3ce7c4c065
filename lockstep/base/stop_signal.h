// How a process learns that it should stop: a signal sets a flag that the program checks between its steps. While a
// StopSignals object lives, those of its signals that had the default action no longer end the process; a program's
// handlers and ignored signals are not changed. A second signal more than kSameRequest after the first ends the
// process at once, by its default action; an earlier one counts as the same request, which the terminal, the launcher
// and a batch system may all send. In a forked child the default actions apply. Thread-safe; nothing blocks.
#pragma once

#include <chrono>
#include <csignal>
#include <vector>

namespace lockstep {

// For a program with its own handlers: acts as if the signal had arrived. May be called in a signal handler.
void request_stop(int signal = SIGTERM) noexcept;
// The first signal that asked this process to stop; 0: none so far. Other ranks may have received one: programs
// call World::stop_requested(), save, and exit with 0: `lockstep run` reports other codes as failures (LAUNCHING.md).
int stop_signal() noexcept;

namespace internal {

class StopSignals {
 public:
  static constexpr std::chrono::seconds kSameRequest{1};
  static constexpr std::chrono::seconds kUnwinding{2};

  // Error{invalid_argument}: one of them cannot be caught.
  explicit StopSignals(const std::vector<int>& signals);
  // The last object restores the default actions, unless a stop was requested or keep() was called: while the
  // process ends, further copies of the request must not turn that into a failure. If an exception ends it, signals
  // are requests for kUnwinding more, so that the program can print its error before a launcher's SIGTERM ends it.
  ~StopSignals();
  void keep() { caught_.clear(); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  const int exceptions_;  // in flight when it was made
  std::vector<int> caught_;
};

// As if no signal had arrived. For tests.
void forget_stop_request() noexcept;

}  // namespace internal
}  // namespace lockstep
