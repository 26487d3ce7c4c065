// A SignalBlock blocks signals in the calling thread while it lives: all of them, so that a thread made meanwhile
// leaves them to the program's own threads, or only some. Used within one thread.
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
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

  const sigset_t& mask_before() const { return before_; }

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
  sigset_t blocked_;
  sigset_t before_;
  sigset_t pending_{};
};

}  // namespace lockstep::internal
