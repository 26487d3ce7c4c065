// "localhost" on hosts with IPv4 only, IPv6 only and both: each is a network namespace of a child process.
#include <cstdio>
#include <string>

#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"
#include "tests/support/accepted.h"
#include "tests/support/expect_error.h"
#include "tests/support/network_namespace.h"

namespace localhost_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// Runs in the child.
int meet_on_localhost(const char* expected_host) {
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
  check_in_network_namespace(commands, [&] { return meet_on_localhost(expected_host); });
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
