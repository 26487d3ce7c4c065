// "localhost" on hosts with IPv4 only, IPv6 only and both: each is a network namespace of a child process.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "lockstep/net/listener.h"
#include "lockstep/net/socket.h"
#include "tests/support/accepted.h"
#include "tests/support/expect_error.h"
#include "tests/support/skip.h"

namespace localhost_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr int kNoNamespaces = 77;

// Becomes root of a network namespace of its own; a user who is not root needs a user namespace for it.
bool enter_network_namespace() {
  if (::unshare(CLONE_NEWNET) == 0) return true;
  const std::string map = "0 " + std::to_string(::geteuid()) + " 1";
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  return static_cast<bool>(std::ofstream("/proc/self/uid_map") << map << std::flush);
}

// Runs in the child: sets the host up with `commands`, then listens and connects on localhost.
int meet_on_localhost(const char* commands, const char* expected_host) {
  if (!enter_network_namespace()) return kNoNamespaces;
  if (std::system("command -v ip >/dev/null && ip link set lo up") != 0) return kNoNamespaces;
  if (std::system(commands) != 0) return kNoNamespaces;
  try {
    Listener listener = Listener::bind({"localhost", 0}, Deadline::after(5s));
    const Endpoint by_name{"localhost", listener.address().port()};
    const UniqueFd client = connect_tcp(by_name, ConnectRetry::never, Deadline::after(5s));
    const UniqueFd server = testing::accepted(listener, Deadline::after(5s));
    return local_address(server.get()).host() == expected_host ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

void check_in_child(const char* commands, const char* expected_host) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(meet_on_localhost(commands, expected_host));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) return skip("this user cannot make network namespaces here");
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace

// feature: A-15
TEST_CASE("localhost on a host with IPv4 only" * needs("namespaces")) {
  check_in_child("ip -6 addr flush dev lo", "127.0.0.1");
}

// feature: A-15
TEST_CASE("localhost on a host with IPv6 only" * needs("namespaces")) {
  check_in_child("ip -4 addr flush dev lo", "::1");
}

// feature: A-15
TEST_CASE("localhost on a host with both" * needs("namespaces")) { check_in_child("true", "127.0.0.1"); }

}  // namespace localhost_test
