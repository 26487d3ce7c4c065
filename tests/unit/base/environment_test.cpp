#include "lockstep/base/environment.h"

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/choose_name.h"
#include "lockstep/base/log.h"
#include "lockstep/base/nearest_name.h"
#include "tests/support/expect_error.h"

namespace environment_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

EnvironmentReader reader_of(const std::map<std::string, std::string>& variables) {
  return EnvironmentReader([variables](const char* name) -> const char* {
    static thread_local std::string value;
    const auto found = variables.find(name);
    if (found == variables.end()) return nullptr;
    value = found->second;
    return value.c_str();
  });
}

std::vector<std::string> unknown(std::initializer_list<const char*> entries) {
  std::vector<const char*> environment(entries);
  environment.push_back(nullptr);
  return describe_unknown_variables(environment.data());
}

}  // namespace

TEST_CASE("an empty variable counts as not set") {
  const EnvironmentReader reader = reader_of({{"RANK", ""}, {"HOME", "x"}, {"TERM", "y"}});
  CHECK(!reader.text("RANK"));
  CHECK(!reader.has("RANK"));
  CHECK(!reader.number("RANK"));
  CHECK(!reader.text("WORLD_SIZE"));
  CHECK(reader.text("HOME") == "x");
  CHECK(reader.first_of({"RANK", "TERM", "HOME"}) == "y");
  CHECK(reader.has_any_of({"RANK", "HOME"}));
  CHECK(!reader.has_any_of({"RANK", "WORLD_SIZE"}));
}

TEST_CASE("a variable that is not in the table cannot be read") {
  CHECK_ERROR(error_of([] {
                reader_of({{"OTHER", "1"}}).text("OTHER");
              }),
              ErrorKind::internal, "OTHER is missing from the table of variables");
}

TEST_CASE("a duration is a number of seconds, with or without a fraction") {
  const auto timeout = [](const char* text) {
    return reader_of({{"LOCKSTEP_HOST_TIMEOUT", text}}).duration("LOCKSTEP_HOST_TIMEOUT");
  };
  CHECK_FALSE(timeout(""));
  CHECK(timeout("2") == std::chrono::milliseconds(2000));
  CHECK(timeout("2.5") == std::chrono::milliseconds(2500));
  CHECK(timeout("600") == std::chrono::milliseconds(600'000));
  for (const char* wrong : {"1.999", "601", "-3", "x", "3 s", "3s", "nan", "inf", "1e2", "0x4", " 3"}) {
    CAPTURE(wrong);
    CHECK_ERROR(error_of([&] { timeout(wrong); }), ErrorKind::invalid_argument,
                "LOCKSTEP_HOST_TIMEOUT is '" + std::string(wrong) + "'; it can be 2 to 600 seconds");
  }
}

TEST_CASE("a value that is not an accepted number is quoted, with what is accepted") {
  const auto connections = [](const char* text) {
    return reader_of({{"LOCKSTEP_CONNECTIONS", text}}).number("LOCKSTEP_CONNECTIONS");
  };
  const auto rank = [](const char* text) { return reader_of({{"RANK", text}}).number("RANK"); };
  CHECK(connections("7") == 7);
  CHECK(rank("-7") == -7);
  for (const char* wrong : {"0", "65", "x", "7x", " 7", "+7", "7.0", "99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_ERROR(error_of([&] { connections(wrong); }), ErrorKind::invalid_argument,
                "LOCKSTEP_CONNECTIONS is '" + std::string(wrong) + "'; it can be 1 to 64");
  }
  CHECK_ERROR(error_of([&] { rank("x"); }), ErrorKind::invalid_argument, "RANK is 'x', not an integer");
  CHECK_ERROR(error_of([] {
                reader_of({{"PMI_SIZE", "-1"}}).number<std::uint64_t>("PMI_SIZE");
              }),
              ErrorKind::invalid_argument, "PMI_SIZE is '-1', not an integer of at least 0");
  CHECK(reader_of({{"SLURM_STEP_ID", "4294967290"}}).number<std::uint32_t>("SLURM_STEP_ID") == 4294967290U);
  for (const char* large : {"4294967296", "99999999999", "99999999999999999999"}) {
    CHECK_ERROR(error_of([&] { rank(large); }), ErrorKind::invalid_argument,
                "RANK is '" + std::string(large) + "'; it can be -2147483648 to 2147483647");
  }
  CHECK_ERROR(error_of([&] { rank("99999999999x"); }), ErrorKind::invalid_argument, "x', not an integer");
}

TEST_CASE("choices ignore case, and a value that is not one of them lists them") {
  const auto choice = [](const char* text) {
    return reader_of({{"LOCKSTEP_LOG_FORMAT", text}}).choice("LOCKSTEP_LOG_FORMAT");
  };
  CHECK(choice("json") == "json");
  CHECK(choice("Text") == "text");
  CHECK(choice("JSON") == "json");
  CHECK(!choice(""));
  CHECK_ERROR(error_of([&] { choice("jso"); }), ErrorKind::invalid_argument,
              "LOCKSTEP_LOG_FORMAT is 'jso'; it can be text or json");
  const std::vector<std::string_view> known{"red", "green", "blue"};
  CHECK(choose_name("the color", "GREEN", known) == "green");
  CHECK_ERROR(error_of([&] { choose_name("the color", "", known); }), ErrorKind::invalid_argument,
              "the color is ''; it can be red, green or blue");
}

TEST_CASE("unknown variables are named, with the one that is meant") {
  CHECK(unknown({"PATH=/bin", "LOCKSTEP_LOG=debug", "LOCKSTEP_TEST_CASES=1", "LOCKSTEP_BENCH_PYTHON=x"}).empty());
  const auto mistyped = unknown({"LOCKSTEP_IFNAM=eth0"});
  REQUIRE(mistyped.size() == 1);
  CHECK(contains(mistyped[0], "LOCKSTEP_IFNAM is set, but Lockstep has no such variable"));
  CHECK(contains(mistyped[0], "did you mean LOCKSTEP_IFNAME?"));
  const auto several = unknown({"LOCKSTEP_ROOT_OF_SOURCES=/src", "LOCKSTEP_BACKENDS=gloo"});
  REQUIRE(several.size() == 2);
  CHECK(contains(several[0], "did you mean LOCKSTEP_BACKEND?"));
  CHECK(contains(several[1], "known variables: LOCKSTEP_ADDRESS, "));
}

TEST_CASE("a name that was mistyped is found, and one that is far from all is not") {
  const std::vector<std::string> names{"--nproc-per-node", "--nnodes", "--hosts"};
  CHECK(nearest_name("--nodes", names, 1) == "--nnodes");
  CHECK(nearest_name("--hots", names, 1) == "--hosts");
  CHECK(nearest_name("--nproc-per-noed", names, 2) == "--nproc-per-node");
  CHECK(!nearest_name("--bogus", names, 1));
  CHECK(!nearest_name("--nodes", {}, 9));
}

TEST_CASE("levels of the log: any case, empty is the default, others are refused with those there are") {
  const char* before = std::getenv("LOCKSTEP_LOG");
  const std::string kept = before == nullptr ? "" : before;
  for (const char* level : {"debug", "Debug", "INFO", "Warning", "WARN", "error", "Off", ""}) {
    CAPTURE(level);
    ::setenv("LOCKSTEP_LOG", level, 1);
    CHECK_NOTHROW(check_log_level());
  }
  ::setenv("LOCKSTEP_LOG", "verbose", 1);
  CHECK_ERROR(error_of([] { check_log_level(); }), ErrorKind::invalid_argument, "LOCKSTEP_LOG is 'verbose'",
              "debug, info, warning");
  kept.empty() ? ::unsetenv("LOCKSTEP_LOG") : ::setenv("LOCKSTEP_LOG", kept.c_str(), 1);
}

}  // namespace environment_test
