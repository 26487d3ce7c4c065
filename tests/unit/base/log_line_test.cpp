#include "lockstep/base/log_line.h"

#include <doctest/doctest.h>

#include <string>

namespace log_line_test {

using namespace lockstep::internal;

TEST_CASE("a line is an object with what is known") {
  CHECK(json_of({.time = "t", .message = "a"}) == "{\"time\":\"t\",\"message\":\"a\"}\n");
  CHECK(json_of({.time = "t",
                 .level = "info",
                 .host = "n1",
                 .rank = 0,
                 .attempt = 2,
                 .stream = "stderr",
                 .message = "\"\n\xff"}) ==
        "{\"time\":\"t\",\"level\":\"info\",\"host\":\"n1\",\"rank\":0,\"attempt\":2,\"stream\":\"stderr\","
        "\"message\":\"\\\"\\n\uFFFD\"}\n");
}

TEST_CASE("times are in UTC, with milliseconds") {
  const std::string time = log_time();
  CHECK(time.size() == std::string("2026-01-31T12:00:00.123Z").size());
  CHECK(time.ends_with("Z"));
  CHECK(time[10] == 'T');
  CHECK(time[19] == '.');
}

TEST_CASE("the library's own lines are recognised, and no others") {
  const std::string line =
      json_of({.time = "t", .level = "warning", .host = "h", .rank = 3, .attempt = 1, .message = "m"});
  const auto read = read_library_line(line.substr(0, line.size() - 1));
  REQUIRE(read);
  CHECK(read->level == "warning");
  CHECK(read->message == "m");
  CHECK(library_text(read->level, 3, read->message) == "[lockstep] rank 3: warning: m");
  CHECK(library_text("info", -1, "m") == "[lockstep] m");
  for (const char* other :
       {"", "text", "{}", R"({"time":"t"})", R"({"time":"t","level":"info"})", R"({"time":"t","message":"m"})",
        R"({"time":"t","level":"info","message":1})", R"({"time":"t","level":"info","message":"m","user":"u"})",
        R"({"time":"t","level":"info","rank":-1,"message":"m"})", R"({"time":"t","level":"info","message":"m")",
        R"({"time":"t","level":"info","message":"m"} more)"}) {
    CAPTURE(other);
    CHECK_FALSE(read_library_line(other));
  }
}

}  // namespace log_line_test
