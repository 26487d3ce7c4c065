#include "tools/metrics/http_connection.h"

#include <doctest/doctest.h>

#include <string>

namespace http_connection_test {

using namespace lockstep::tools;

namespace {

std::string asked(std::string_view request) {
  return answer_to(request, [](std::string_view path) { return HttpAnswer{.body = "path " + std::string(path)}; });
}

}  // namespace

TEST_CASE("requests") {
  CHECK(asked("").empty());
  CHECK(asked("GET /metrics HTTP/1.1\r\nHost: x\r\n").empty());
  const std::string get = asked("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(get.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(get.find("Content-Length: 13\r\n") != std::string::npos);
  CHECK(get.ends_with("\r\n\r\npath /metrics"));
  const std::string head = asked("HEAD /metrics HTTP/1.0\r\n\r\n");
  CHECK(head.find("Content-Length: 13\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(asked("POST /metrics HTTP/1.1\r\n\r\nbody").starts_with("HTTP/1.1 405 "));
  for (const char* bad : {"\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    CHECK(asked(bad).starts_with("HTTP/1.1 400 "));
  }
  CHECK(asked(std::string(HttpConnection::kMostRequestBytes - 1, 'x')).empty());
  CHECK(asked(std::string(HttpConnection::kMostRequestBytes, 'x')).starts_with("HTTP/1.1 400 "));
}

}  // namespace http_connection_test
