// How a process learns that it should stop: a signal sets a flag that the program looks at between its steps. While a
// StopSignals lives, its signals no longer end the process, those of them whose action was the default: a program's
// own handlers and ignored signals stay as they are. Later than kSameRequest after the first, a further one ends the
// process at once, by its default action; sooner it is the same request, which the terminal, the launcher and a batch
// system may all send. In a forked child each ends that child, as it would without this. Thread-safe; nothing blocks.
#pragma once

#include <chrono>
#include <csignal>
#include <vector>

namespace lockstep {

// For a program that has handlers of its own: as if one of the signals had come. May be called in a signal handler.
void request_stop(int signal = SIGTERM) noexcept;
// The first that told this process to stop; 0: none so far. Other ranks may have been told without this one: programs
// ask World::stop_requested().
int stop_signal() noexcept;

namespace internal {

class StopSignals {
 public:
  static constexpr std::chrono::seconds kSameRequest{1};

  // Error{invalid_argument}: one of them cannot be caught.
  explicit StopSignals(const std::vector<int>& signals);
  // The last one that lives restores the default actions, unless the process was told to stop, or keep() was called:
  // while it ends, further copies of the request must not make a failure of that.
  ~StopSignals();
  void keep() { caught_.clear(); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::vector<int> caught_;
};

// As if no signal had come. For tests.
void forget_stop_request() noexcept;

}  // namespace internal
}  // namespace lockstep
