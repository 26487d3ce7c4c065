// A host of its own for a test: a child process in a new network namespace, whose loopback interface is up.
#pragma once

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/skip.h"

namespace lockstep::testing {

constexpr int kNoNamespaces = 77;

// Becomes root of a network namespace of its own; a user who is not root needs a user namespace for it.
inline bool enter_network_namespace() {
  if (::unshare(CLONE_NEWNET) == 0) return true;
  const std::string map = "0 " + std::to_string(::geteuid()) + " 1";
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  return static_cast<bool>(std::ofstream("/proc/self/uid_map") << map << std::flush);
}

// Sets the host up with `commands`, and checks that `body` returns 0 there.
template <class Body>
void check_in_network_namespace(const char* commands, Body&& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool is_made = enter_network_namespace() &&
                         std::system("command -v ip >/dev/null && ip link set lo up") == 0 &&
                         std::system(commands) == 0;
    ::_exit(is_made ? body() : kNoNamespaces);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) return skip("this user cannot make network namespaces here");
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace lockstep::testing
