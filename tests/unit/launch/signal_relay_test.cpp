#include "lockstep/job/launch/signal_relay.h"

#include <doctest/doctest.h>
#include <signal.h>

#include "tests/support/forked_child.h"

namespace signal_relay_test {

using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

using Handler = void (*)(int);

Handler handler_of(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

volatile sig_atomic_t g_own_handler_ran = 0;
void own_handler(int /*signal*/) { g_own_handler_ran = 1; }

}  // namespace

TEST_CASE("the program's actions are restored, but of signals for which it has installed another handler") {
  CHECK(exit_code_of_child([] {
          ::signal(SIGTERM, own_handler);
          ::signal(SIGHUP, SIG_IGN);
          ::signal(SIGINT, SIG_DFL);
          ::signal(SIGQUIT, SIG_DFL);
          ::signal(SIGCHLD, own_handler);
          {
            SignalRelay relay;
            ::raise(SIGTERM);
            if (relay.take() != SIGTERM || g_own_handler_ran != 0 || handler_of(SIGCHLD) != SIG_DFL) return false;
            ::signal(SIGINT, own_handler);
            ::signal(SIGHUP, own_handler);
          }
          return handler_of(SIGTERM) == own_handler && handler_of(SIGINT) == own_handler &&
                 handler_of(SIGHUP) == own_handler && handler_of(SIGQUIT) == SIG_DFL &&
                 handler_of(SIGCHLD) == own_handler;
        }) == 0);
}

TEST_CASE("a signal that nobody has taken is raised again") {
  CHECK(exit_code_of_child([] {
          ::signal(SIGTERM, own_handler);
          {
            const SignalRelay relay;
            ::raise(SIGTERM);
          }
          return g_own_handler_ran == 1;
        }) == 0);
}

TEST_CASE("a child that is forked meanwhile has the program's actions, and its signals do not go to the parent") {
  CHECK(exit_code_of_child([] {
          ::signal(SIGTERM, own_handler);
          ::signal(SIGINT, SIG_DFL);
          SignalRelay relay;
          const bool own = exit_code_of_child([] {
                             ::raise(SIGTERM);
                             return g_own_handler_ran == 1 && handler_of(SIGTERM) == own_handler;
                           }) == 0;
          const bool dies = exit_code_of_child([] { return ::raise(SIGINT) == 0; }) == 128 + SIGINT;
          return own && dies && relay.take() == 0;
        }) == 0);
}

}  // namespace signal_relay_test
