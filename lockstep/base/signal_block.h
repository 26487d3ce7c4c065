// A SignalBlock blocks signals in the calling thread while it lives: all of them, those that a thread of the library
// leaves to the program's threads, or only some. Used within one thread.
#pragma once

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace lockstep::internal {

class SignalBlock {
 public:
  SignalBlock() {
    ::sigfillset(&blocked_);
    ::pthread_sigmask(SIG_SETMASK, &blocked_, &before_);
  }
  explicit SignalBlock(std::initializer_list<int> signals) {
    ::sigemptyset(&blocked_);
    for (const int signal : signals) ::sigaddset(&blocked_, signal);
    ::sigpending(&pending_);
    ::pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  }
  // A thread that is made meanwhile runs no handler of the program, except of its own crash. It can still be asked for
  // its stack, and takes the signals in `still_taken`.
  static SignalBlock of_new_thread(std::initializer_list<int> still_taken = {}) { return {OfThread{}, still_taken}; }
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

  const sigset_t& mask_before() const { return before_; }

  // Which signal a launcher sends to get a thread's stack, unless the program uses it.
  static int of_stacks() { return SIGRTMAX - 8; }

  // Takes back a signal that the code under the block has caused. One that was pending before stays. Sets errno.
  // REQUIRES: it was given to the constructor.
  void discard(int signal) const noexcept {
    if (::sigismember(&pending_, signal) != 0) return;
    sigset_t one;
    ::sigemptyset(&one);
    ::sigaddset(&one, signal);
    const timespec now{};
    while (::sigtimedwait(&one, nullptr, &now) == signal || errno == EINTR) {
    }
  }

 private:
  struct OfThread {};
  SignalBlock(OfThread /*tag*/, std::initializer_list<int> still_taken) {
    ::sigfillset(&blocked_);
    for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) ::sigdelset(&blocked_, crash);
    ::sigdelset(&blocked_, of_stacks());
    for (const int signal : still_taken) ::sigdelset(&blocked_, signal);
    ::pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  }

  sigset_t blocked_;
  sigset_t before_;
  sigset_t pending_{};
};

}  // namespace lockstep::internal
