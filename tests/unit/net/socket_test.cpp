#include "lockstep/comm/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <optional>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/listener.h"
#include "tests/support/accepted.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"

namespace socket_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(5s); }

int option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  REQUIRE(::getsockopt(fd, level, name, &value, &length) == 0);
  return value;
}

// A port that was free a moment ago.
Endpoint free_endpoint() { return Listener::bind({"127.0.0.1", 0}, soon()).address().endpoint(); }

}  // namespace

TEST_CASE("bytes travel both ways, and both ends know the addresses") {
  Listener listener = Listener::bind({"127.0.0.1", 0}, soon());
  UniqueFd client = connect_tcp(listener.address().endpoint(), ConnectRetry::never, soon());
  UniqueFd server = testing::accepted(listener, soon());
  CHECK(describe_peer(server.get()) == to_string(local_address(client.get())));
  CHECK(local_address(client.get()).host() == "127.0.0.1");
  const Bytes sent(3 << 20, 'a');
  auto sender = std::async(std::launch::async, [&] { send_all(client.get(), as_span(ByteView(sent)), soon()); });
  Bytes received(sent.size(), '\0');
  recv_all(server.get(), as_span(received), soon());
  sender.get();
  CHECK(received == sent);
  for (const int fd : {client.get(), server.get()}) {
    CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY) != 0);
    // One kernel has both ends: no timer of its own may end the connection.
    CHECK(is_within_host(fd));
    CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 0);
    CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
  }
}

TEST_CASE("without retries a closed port is an error at once") {
  const Endpoint endpoint = free_endpoint();
  const auto error = error_of([&] { connect_tcp(endpoint, ConnectRetry::never, soon()); });
  CHECK_ERROR(error, ErrorKind::peer_lost, to_string(endpoint), "Connection refused");
}

TEST_CASE("connecting waits for a server that starts later") {
  const Endpoint endpoint = free_endpoint();
  auto client =
      std::async(std::launch::async, [&] { return connect_tcp(endpoint, ConnectRetry::until_deadline, soon()); });
  CHECK(client.wait_for(50ms) == std::future_status::timeout);
  Listener listener = Listener::bind(endpoint, soon());
  UniqueFd server = testing::accepted(listener, soon());
  CHECK(describe_peer(server.get()) == to_string(local_address(client.get().get())));
}

TEST_CASE("connecting gives up at the deadline and says what it saw last") {
  const Endpoint endpoint = free_endpoint();
  const auto start = steady_clock().now();
  const auto error = error_of([&] { connect_tcp(endpoint, ConnectRetry::until_deadline, Deadline::after(100ms)); });
  CHECK(steady_clock().now() - start >= 100ms);
  CHECK(steady_clock().now() - start < 4s);
  CHECK_ERROR(error, ErrorKind::timeout, to_string(endpoint), "Connection refused", "server is running");
}

TEST_CASE("a server that accepts nothing more holds a connecting client no longer than its deadline") {
  // A backlog of 0 still takes one connection; the kernel then drops the next client's packets.
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 0) == 0);
  const Endpoint endpoint = local_address(listener.get()).endpoint();
  const UniqueFd first = connect_tcp(endpoint, ConnectRetry::never, soon());
  const auto start = steady_clock().now();
  const auto error = error_of([&] { connect_tcp(endpoint, ConnectRetry::until_deadline, Deadline::after(100ms)); });
  CHECK(steady_clock().now() - start < 4s);
  CHECK_ERROR(error, ErrorKind::timeout, to_string(endpoint), "no answer");
}

TEST_CASE("sending and receiving end at the deadline") {
  auto [left, right] = make_socket_pair();
  Bytes buffer(1, '\0');
  CHECK_ERROR(error_of([&] { recv_all(left.get(), as_span(buffer), Deadline::after(20ms)); }), ErrorKind::timeout,
              "receiving");
  const Bytes much(8 << 20, 'a');
  CHECK_ERROR(error_of([&] { send_all(left.get(), as_span(ByteView(much)), Deadline::after(20ms)); }),
              ErrorKind::timeout, "sending");
}

TEST_CASE("a peer that is gone is peer_lost, without SIGPIPE") {
  auto [left, right] = make_socket_pair();
  right.reset();
  Bytes buffer(1, '\0');
  CHECK_ERROR(error_of([&] { recv_all(left.get(), as_span(buffer), soon()); }), ErrorKind::peer_lost, "closed");
  CHECK_ERROR(error_of([&] { send_all(left.get(), as_span(ByteView("x")), soon()); }), ErrorKind::peer_lost,
              "Broken pipe");
}

TEST_CASE("an address that does not answer holds up no other address of the server") {
  // Of "localhost": at 127.0.0.1 the kernel drops what comes beyond a backlog of 0, at ::1 somebody listens.
  UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(silent.get(), 0) == 0);
  const std::uint16_t port = local_address(silent.get()).port();
  const UniqueFd first = connect_tcp({"127.0.0.1", port}, ConnectRetry::never, soon());
  std::optional<Listener> listener;
  try {
    listener.emplace(Listener::bind({"::1", port}, soon()));
  } catch (const Error& error) {
    MESSAGE("no IPv6 here: ", error.what());
    return;
  }
  for (const ConnectRetry retry : {ConnectRetry::never, ConnectRetry::until_deadline, ConnectRetry::unless_refused}) {
    const TimePoint start = steady_clock().now();
    const UniqueFd fd = connect_tcp({"localhost", port}, retry, soon());
    CHECK(describe_peer(fd.get()) == fmt::format("[::1]:{}", port));
    CHECK(steady_clock().now() - start < 3s);
  }
  listener.reset();
  // Nobody refuses for the silent one, but a refusal ends the wait for who was reached before.
  const TimePoint start = steady_clock().now();
  CHECK_ERROR(error_of([&] {
                connect_tcp({"localhost", port}, ConnectRetry::unless_refused, soon());
              }),
              ErrorKind::peer_lost, fmt::format("[::1]:{}: Connection refused", port), "127.0.0.1", "no answer");
  CHECK(steady_clock().now() - start < 3s);
}

}  // namespace socket_test
