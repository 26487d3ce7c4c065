// Connecting on a host whose network is still being set up: a network namespace of a child process.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"
#include "tests/support/accepted.h"
#include "tests/support/expect_error.h"
#include "tests/support/network_namespace.h"

namespace late_network_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr const char* kAddress = "10.66.1.5";

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

UniqueFd connect(Duration patience) {
  return connect_tcp({kAddress, 4711}, ConnectRetry::until_deadline, Deadline::after(patience));
}

// Runs in the child: connects where no way leads to yet, and then one does.
int connect_early(const char* route, const char* expected) {
  if (!run(fmt::format("ip route add {} {}", route, kAddress))) return kNoNamespaces;
  const std::string why = error_of([] { connect(50ms); }).what();
  if (why.find(expected) == std::string::npos || why.find("before the deadline") == std::string::npos) {
    std::fprintf(stderr, "with a route of type %s: %s\n", route, why.c_str());
    return 1;
  }
  auto client = std::async(std::launch::async, [] { return connect(20s); });
  if (client.wait_for(100ms) != std::future_status::timeout) return 2;
  try {
    if (!run(fmt::format("ip route del {0} {1} && ip addr add {1}/32 dev lo", route, kAddress))) return 3;
    Listener listener = Listener::bind({kAddress, 4711}, Deadline::after(5s));
    const UniqueFd server = accepted(listener, Deadline::after(20s));
    return describe_peer(client.get().get()) == fmt::format("{}:4711", kAddress) ? 0 : 4;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}

}  // namespace

TEST_CASE("connecting goes on until the route comes, whatever the kernel says of it" * needs("namespaces")) {
  const auto check = [](const char* route, const char* expected) {
    CAPTURE(route);
    check_in_network_namespace("true", [&] { return connect_early(route, expected); });
  };
  check("unreachable", "No route to host");
  check("blackhole", "Invalid argument");
  check("prohibit", "Permission denied");
  check("throw", "Network is unreachable");
}

TEST_CASE("errors that a change of the network can heal, and others") {
  CHECK_FALSE(may_heal(EAFNOSUPPORT));
  CHECK_FALSE(may_heal(EPROTONOSUPPORT));
  CHECK_FALSE(may_heal(EBADF));
  CHECK_FALSE(may_heal(EMFILE));
  for (const int error :
       {ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN, EINVAL, EACCES, EPERM, EADDRNOTAVAIL}) {
    CHECK(may_heal(error));
  }
}

}  // namespace late_network_test
