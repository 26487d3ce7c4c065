#include "lockstep/comm/rendezvous/handlers.h"

#include "tests/support/expect_error.h"

namespace url_test {

using namespace lockstep;

TEST_CASE("URLs are taken apart") {
  const Url tcp = parse_url("tcp://[::1]:29500?rank=1&world_size=4");
  CHECK(tcp.scheme == "tcp");
  CHECK(tcp.target == "[::1]:29500");
  CHECK(tcp.query.at("rank") == "1");
  CHECK(tcp.query.at("world_size") == "4");
  CHECK(parse_url("file:///tmp/meet").target == "/tmp/meet");
  CHECK(parse_url("env://").target.empty());
  CHECK(parse_url("env://?").query.empty());
}

// feature: B-05
TEST_CASE("what is wrong with a URL is quoted, and what would be right is listed") {
  const auto error = [](const char* text) { return error_of([&] { parse_url(text); }); };
  CHECK_ERROR(error("etcd://host"), ErrorKind::invalid_argument, "'etcd://host'", "'etcd'", "env://, tcp://, file://");
  CHECK_ERROR(error("host:80"), ErrorKind::invalid_argument, "no scheme", "env://, tcp://, file://");
  CHECK_ERROR(error("tcp://a:1?size=2"), ErrorKind::invalid_argument, "'size'", "rank, world_size");
  CHECK_ERROR(error("tcp://a:1?rank"), ErrorKind::invalid_argument, "'rank' has no value");
  CHECK_ERROR(error("tcp://a:1?rank=1&rank=2"), ErrorKind::invalid_argument, "'rank' is given twice");
}

}  // namespace url_test
