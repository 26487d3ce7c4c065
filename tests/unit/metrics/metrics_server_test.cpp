#include "tools/metrics/metrics_server.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/net/socket.h"

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
  try {
    for (char letter = 0;; text += letter) {
      recv_all(fd.get(), std::as_writable_bytes(std::span(&letter, 1)), Deadline::after(kSoon));
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::peer_lost);
  }
  return text;
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

}  // namespace metrics_server_test
