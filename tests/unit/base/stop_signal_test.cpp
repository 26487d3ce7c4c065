#include "lockstep/base/stop_signal.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"

namespace stop_signal_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

const std::vector<int> kUsual{SIGTERM, SIGINT, SIGHUP};

// As in a program that has no handlers; the test's own program has some.
int exit_code_of_program(const std::function<bool()>& body) {
  return exit_code_of_child([&] {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::signal(signal, SIG_DFL);
    return body();
  });
}

using Handler = void (*)(int);

Handler handler_of(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

volatile sig_atomic_t g_own_handler_ran = 0;

}  // namespace

TEST_CASE("a signal becomes a request while somebody wants to know, and ends the process otherwise") {
  for (const int signal : kUsual) {
    CHECK(exit_code_of_program([&] { return ::raise(signal) == 0; }) == 128 + signal);
    CHECK(exit_code_of_program([&] {
            const StopSignals signals(kUsual);
            const bool none_before = stop_signal() == 0;
            ::raise(signal);
            return none_before && stop_signal() == signal;
          }) == 0);
    CHECK(exit_code_of_program([&] {
            { const StopSignals signals(kUsual); }
            return ::raise(signal) == 0;
          }) == 128 + signal);
  }
  CHECK(exit_code_of_program([] {
          const StopSignals signals(kUsual);
          return ::raise(SIGUSR1) == 0;
        }) == 128 + SIGUSR1);
  CHECK(exit_code_of_program([] {
          const StopSignals signals({SIGUSR1});
          ::raise(SIGUSR1);
          return stop_signal() == SIGUSR1 && handler_of(SIGTERM) == SIG_DFL;
        }) == 0);
}

TEST_CASE("signals within a second are one request; a later one ends the process at once") {
  CHECK(exit_code_of_program([] {
          const StopSignals signals(kUsual);
          for (int i = 0; i < 100; ++i) ::raise(i % 2 == 0 ? SIGINT : SIGTERM);
          return stop_signal() == SIGINT;
        }) == 0);
  CHECK(exit_code_of_program([] {
          const StopSignals signals(kUsual);
          ::raise(SIGTERM);
          std::this_thread::sleep_for(StopSignals::kSameRequest + 10ms);
          ::raise(SIGINT);
          return true;
        }) == 128 + SIGINT);
}

TEST_CASE("handlers of the program and ignored signals stay") {
  CHECK(exit_code_of_program([] {
          ::signal(SIGHUP, SIG_IGN);
          ::signal(SIGINT, [](int) { g_own_handler_ran = 1; });
          const Handler own = handler_of(SIGINT);
          {
            const StopSignals signals(kUsual);
            ::raise(SIGHUP);
            ::raise(SIGINT);
            if (stop_signal() != 0 || g_own_handler_ran != 1) return false;
            ::signal(SIGTERM, [](int) { request_stop(SIGTERM); });  // one that comes later
          }
          ::raise(SIGTERM);
          return stop_signal() == SIGTERM && handler_of(SIGHUP) == SIG_IGN && handler_of(SIGINT) == own &&
                 handler_of(SIGTERM) != SIG_DFL;
        }) == 0);
}

TEST_CASE("the last of several that catch a signal restores its action") {
  CHECK(exit_code_of_program([] {
          std::optional<StopSignals> one(std::in_place, kUsual), two(std::in_place, std::vector<int>{SIGTERM});
          one.reset();
          if (handler_of(SIGINT) != SIG_DFL || handler_of(SIGTERM) == SIG_DFL) return false;
          two.reset();
          return handler_of(SIGTERM) == SIG_DFL;
        }) == 0);
}

TEST_CASE("once told to stop, a process that ends does not die of further copies of the request") {
  CHECK(exit_code_of_program([] {
          {
            const StopSignals signals(kUsual);
            ::raise(SIGTERM);
          }
          ::raise(SIGTERM);
          return stop_signal() == SIGTERM;
        }) == 0);
  CHECK(exit_code_of_program([] {
          {
            StopSignals signals(kUsual);
            signals.keep();  // the others were told
          }
          ::raise(SIGTERM);
          return stop_signal() == SIGTERM;
        }) == 0);
}

TEST_CASE("while an exception ends the program, a signal does not end it before the error is printed") {
  const auto throw_under_signals = [] {
    try {
      const StopSignals signals(kUsual);
      throw 1;
    } catch (int) {
    }
  };
  CHECK(exit_code_of_program([&] {
          throw_under_signals();
          ::raise(SIGTERM);
          return stop_signal() == SIGTERM;
        }) == 0);
  CHECK(exit_code_of_program([&] {  // the program goes on with others
          throw_under_signals();
          { const StopSignals signals(kUsual); }
          return handler_of(SIGTERM) == SIG_DFL && handler_of(SIGINT) == SIG_DFL;
        }) == 0);
  CHECK(exit_code_of_program([&] {  // or without any
          throw_under_signals();
          std::this_thread::sleep_for(StopSignals::kUnwinding + 10ms);
          return ::raise(SIGTERM) == 0;
        }) == 128 + SIGTERM);
  CHECK(exit_code_of_program([] {  // one that lives within another's unwinding
          struct Cleanup {
            ~Cleanup() { const StopSignals signals(kUsual); }
          };
          try {
            const Cleanup cleanup;
            throw 1;
          } catch (int) {
          }
          return handler_of(SIGTERM) == SIG_DFL;
        }) == 0);
}

TEST_CASE("a forked child dies of the signal, and its parent's request is not its own") {
  CHECK(exit_code_of_program([] {
          const StopSignals signals(kUsual);
          if (exit_code_of_child([] { return ::raise(SIGTERM) == 0; }) != 128 + SIGTERM) return false;
          if (stop_signal() != 0) return false;
          ::raise(SIGTERM);
          return exit_code_of_child([] { return stop_signal() == 0; }) == 0 &&
                 exit_code_of_child([] {
                   const StopSignals own(kUsual);  // as a rank that is forked does
                   ::raise(SIGHUP);
                   return stop_signal() == SIGHUP;
                 }) == 0 &&
                 stop_signal() == SIGTERM;
        }) == 0);
}

TEST_CASE("signals in many threads at once are one request") {
  CHECK(exit_code_of_program([] {
          const StopSignals signals(kUsual);
          const auto until = std::chrono::steady_clock::now() + 200ms;
          {
            std::vector<std::jthread> threads;
            for (int i = 0; i < 4; ++i) {
              threads.emplace_back([&] {
                while (std::chrono::steady_clock::now() < until) ::raise(SIGTERM);
              });
            }
          }
          return stop_signal() == SIGTERM;
        }) == 0);
}

TEST_CASE("what cannot be caught is refused, and nothing is caught then") {
  CHECK(exit_code_of_program([] {
          const auto refuses = [](int signal) {
            try {
              const StopSignals signals({SIGTERM, signal});
            } catch (const Error& error) {
              return error.kind() == ErrorKind::invalid_argument && handler_of(SIGTERM) == SIG_DFL;
            }
            return false;
          };
          return refuses(SIGKILL) && refuses(SIGSTOP) && refuses(0) && refuses(-1) && refuses(1000);
        }) == 0);
  CHECK_ERROR(error_of([] { const StopSignals signals({SIGKILL}); }), ErrorKind::invalid_argument,
              "stop_signals: 9 is not a signal that a process can catch");
}

}  // namespace stop_signal_test
