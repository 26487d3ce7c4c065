#include "lockstep/base/signal_block.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <thread>

namespace signal_block_test {

using namespace lockstep::internal;

namespace {

sigset_t blocked_now() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return blocked;
}

}  // namespace

TEST_CASE("a thread of the library leaves the program's signals to others, and takes those of its own crash") {
  const sigset_t before = blocked_now();
  sigset_t of_thread{};
  {
    const SignalBlock block = SignalBlock::of_new_thread({SIGINT});
    std::jthread([&] { of_thread = blocked_now(); });
  }
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD, SIGPIPE, SIGRTMIN}) {
    CAPTURE(signal);
    CHECK(::sigismember(&of_thread, signal) == 1);
  }
  for (const int signal : {SIGINT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SignalBlock::of_stacks()}) {
    CAPTURE(signal);
    CHECK(::sigismember(&of_thread, signal) == 0);
  }
  const sigset_t after = blocked_now();
  for (int signal = 1; signal < NSIG; ++signal) {
    CHECK(::sigismember(&after, signal) == ::sigismember(&before, signal));
  }
}

TEST_CASE("what the caller blocks stays blocked in a thread of the library") {
  const SignalBlock of_caller({SIGINT});
  const SignalBlock block = SignalBlock::of_new_thread({SIGINT});
  const sigset_t blocked = blocked_now();
  CHECK(::sigismember(&blocked, SIGINT) == 1);
}

}  // namespace signal_block_test
