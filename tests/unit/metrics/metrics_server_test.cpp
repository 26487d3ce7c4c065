#include "tools/metrics/metrics_server.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "lockstep/comm/net/socket.h"

namespace metrics_server_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::tools;

constexpr Duration kSoon = std::chrono::seconds(20);

UniqueFd connect_to(const MetricsServer& server) {
  return connect_tcp(server.endpoint(), ConnectRetry::never, Deadline::after(kSoon));
}

// All that comes until the server closes.
std::string rest_of(const UniqueFd& fd) {
  std::string text;
  std::vector<char> bytes(1 << 16);
  for (const Deadline deadline = Deadline::after(kSoon);;) {
    pollfd readable{fd.get(), POLLIN, 0};
    REQUIRE(::poll(&readable, 1, deadline.poll_timeout_ms()) == 1);
    const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
}

std::string ask(const UniqueFd& fd, std::string_view request) {
  send_all(fd.get(), std::as_bytes(std::span(request)), Deadline::after(kSoon));
  return rest_of(fd);
}

}  // namespace

TEST_CASE("clients that say nothing or do not read keep nobody else waiting") {
  bool is_well = true;
  const MetricsServer server({"127.0.0.1", 0}, {.metrics = [] { return std::string(std::size_t{4} << 20, 'x'); },
                                                .health =
                                                    [&] {
                                                      return HealthAnswer{is_well, "so"};
                                                    }});
  std::vector<UniqueFd> idle;
  for (std::size_t i = 1; i < MetricsServer::kMostConnections; ++i) {
    idle.push_back(connect_to(server));
    if (i > 3) continue;                                               // the others say nothing
    const std::string_view request = "GET /metrics HTTP/1.1\r\n\r\n";  // more than fits into the system's buffers
    send_all(idle.back().get(), std::as_bytes(std::span(request)), Deadline::after(kSoon));
  }
  const Deadline before_they_are_dropped = Deadline::after(HttpConnection::kLimit);
  CHECK(ask(connect_to(server), "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK_FALSE(before_they_are_dropped.expired());
  is_well = false;
  CHECK(ask(connect_to(server), "GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nso\n"));
  CHECK(ask(connect_to(server), "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
  CHECK(ask(connect_to(server), "GET /metrics HTTP/1.1\r\n\r\n").size() > std::size_t{4} << 20);
  CHECK(rest_of(idle.back()).empty());  // it is dropped at its limit
}

TEST_CASE("the oldest client that has asked for nothing makes room for a new one") {
  const MetricsServer server({"127.0.0.1", 0}, {.metrics = [] { return std::string(std::size_t{4} << 20, 'x'); },
                                                .health =
                                                    [] {
                                                      return HealthAnswer{true, "so"};
                                                    }});
  const Deadline before_they_are_dropped = Deadline::after(HttpConnection::kLimit);
  std::vector<UniqueFd> idle;
  const auto connect_and_say = [&](std::string_view words) {  // nothing at all: the system keeps it for a second
    idle.push_back(connect_to(server));
    send_all(idle.back().get(), std::as_bytes(std::span(words)), Deadline::after(kSoon));
  };
  connect_and_say("GET /metrics HTTP/1.1\r\n\r\n");
  while (idle.size() < MetricsServer::kMostConnections) connect_and_say("GET /");
  for (int probe = 0; probe < 3; ++probe) {
    CHECK(ask(connect_to(server), "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  }
  CHECK(rest_of(idle[1]).empty());
  CHECK(rest_of(idle[0]).size() > std::size_t{4} << 20);  // it has asked, and is served
  for (int i = 0; i < 100; ++i) connect_and_say("GET /");
  CHECK(ask(connect_to(server), "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK_FALSE(before_they_are_dropped.expired());
}

}  // namespace metrics_server_test
