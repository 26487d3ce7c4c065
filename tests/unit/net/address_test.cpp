#include "lockstep/comm/net/address.h"

#include <string>

#include "tests/support/expect_error.h"

namespace address_test {

using namespace lockstep;
using namespace std::chrono_literals;

namespace {
Deadline soon() { return Deadline::after(5s); }
}  // namespace

TEST_CASE("endpoints are parsed and written back") {
  CHECK(parse_endpoint("node1:29500") == Endpoint{"node1", 29500});
  CHECK(parse_endpoint("10.0.0.1:0") == Endpoint{"10.0.0.1", 0});
  CHECK(parse_endpoint("[::1]:65535") == Endpoint{"::1", 65535});
  CHECK(to_string(Endpoint{"::1", 80}) == "[::1]:80");
  CHECK(to_string(parse_endpoint("node1:80")) == "node1:80");
}

TEST_CASE("what is no endpoint is refused with its text and the reason") {
  const auto error = [](const char* text) { return error_of([&] { parse_endpoint(text); }); };
  CHECK_ERROR(error("node1"), ErrorKind::invalid_argument, "'node1'", "port is missing");
  CHECK_ERROR(error(":80"), ErrorKind::invalid_argument, "host is empty");
  CHECK_ERROR(error("::1:80"), ErrorKind::invalid_argument, "brackets");
  CHECK_ERROR(error("[::1:80"), ErrorKind::invalid_argument, "']'");
  CHECK_ERROR(error("[::1]"), ErrorKind::invalid_argument, "port is missing");
  CHECK_ERROR(error("a:65536"), ErrorKind::invalid_argument, "'a:65536'", "'65536'", "0 to 65535");
  CHECK_ERROR(error("a:8o"), ErrorKind::invalid_argument, "'8o'");
  CHECK_ERROR(error("a:-1"), ErrorKind::invalid_argument, "'-1'");
  CHECK_ERROR(error("a:"), ErrorKind::invalid_argument, "''");
}

TEST_CASE("numeric addresses resolve to themselves") {
  const auto v4 = resolve({"127.0.0.2", 81}, soon());
  REQUIRE(v4.size() == 1);
  CHECK(to_string(v4[0]) == "127.0.0.2:81");
  CHECK(v4[0].is_loopback());
  const auto v6 = resolve({"::1", 82}, soon());
  REQUIRE(v6.size() == 1);
  CHECK(to_string(v6[0]) == "[::1]:82");
  CHECK(v6[0].is_loopback());
  CHECK(resolve({"::ffff:127.0.0.1", 1}, soon())[0].is_loopback());
  CHECK_FALSE(resolve({"10.1.2.3", 1}, soon())[0].is_loopback());
  CHECK_FALSE(resolve({"2001:db8::1", 1}, soon())[0].is_loopback());
}

TEST_CASE("addresses that no host has") {
  const auto why = [](const char* host) { return std::string(resolve({host, 1}, soon())[0].why_of_no_host()); };
  for (const char* host : {"0.0.0.0", "0", "::", "::ffff:0.0.0.0"}) CHECK(why(host) == "means all addresses of a host");
  for (const char* host : {"224.0.0.1", "239.1.2.3", "ff02::1"}) CHECK(why(host) == "is a multicast address");
  CHECK(why("255.255.255.255") == "is the broadcast address");
  for (const char* host : {"127.0.0.1", "10.0.0.255", "1.0.0.0", "::1", "2001:db8::1", "fe80::1%lo", "::ffff:10.0.0.1"})
    CHECK(why(host) == "");
}

TEST_CASE("a link-local address has the scope of the host that uses it") {
  const SocketAddress with = resolve({"fe80::1%lo", 1}, soon())[0];
  CHECK(with.is_link_local());
  CHECK(with.has_scope());
  CHECK_FALSE(resolve({"fe80::1", 1}, soon())[0].has_scope());
  CHECK_FALSE(resolve({"2001:db8::1", 1}, soon())[0].is_link_local());
  CHECK(with_scope_of("fe80::2%wire", {"fe80::1%eth0", 80}) == Endpoint{"fe80::1%wire", 80});
  CHECK(with_scope_of("fe80::2%wire", {"fe80::1", 80}) == Endpoint{"fe80::1%wire", 80});
  CHECK(with_scope_of("10.0.0.2", {"fe80::1%eth0", 80}) == Endpoint{"fe80::1%eth0", 80});
  CHECK(with_scope_of("fe80::2%wire", {"2001:db8::1", 80}) == Endpoint{"2001:db8::1", 80});
  CHECK(with_scope_of("fe80::2%wire", {"10.0.0.1", 80}) == Endpoint{"10.0.0.1", 80});
  CHECK(with_scope_of("fe80::2%wire", {"h1", 80}) == Endpoint{"h1", 80});
  CHECK_ERROR(error_of([] {
                resolve({"fe80::1%no-such", 1}, soon());
              }),
              ErrorKind::invalid_argument, "'no-such'", "network interface");
}

TEST_CASE("localhost is both loopback addresses, IPv4 first") {
  const auto addresses = resolve({"localhost", 83}, soon());
  REQUIRE(addresses.size() == 2);
  CHECK(to_string(addresses[0]) == "127.0.0.1:83");
  CHECK(to_string(addresses[1]) == "[::1]:83");
}

TEST_CASE("a name that does not exist is named") {
  const auto error = error_of([] { resolve({"no-such-host.invalid", 80}, Deadline::after(30s)); });
  CHECK_ERROR(error, ErrorKind::invalid_argument, "no-such-host.invalid", "name server");
}

}  // namespace address_test
