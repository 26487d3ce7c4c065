#include "lockstep/base/environment.h"

#include <array>
#include <map>

#include "lockstep/base/log.h"
#include "tests/support/expect_error.h"

using namespace lockstep;

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
  const EnvironmentReader reader = reader_of({{"EMPTY", ""}, {"FULL", "x"}, {"ALSO", "y"}});
  CHECK(!reader.text("EMPTY"));
  CHECK(!reader.has("EMPTY"));
  CHECK(!reader.number("EMPTY"));
  CHECK(!reader.text("MISSING"));
  CHECK(reader.text("FULL") == "x");
  CHECK(reader.first_of({"EMPTY", "ALSO", "FULL"}) == "y");
  CHECK(reader.has_any_of({"EMPTY", "FULL"}));
  CHECK(!reader.has_any_of({"EMPTY", "MISSING"}));
}

TEST_CASE("numbers are quoted where they are none, with what they can be") {
  const auto number = [](const char* text, int least, int most) {
    return reader_of({{"N", text}}).number("N", least, most);
  };
  CHECK(number("7", 1, 64) == 7);
  CHECK(number("-7", -8, 64) == -7);
  for (const char* wrong : {"0", "65", "x", "7x", " 7", "+7", "7.0", "99999999999999999999"}) {
    CAPTURE(wrong);
    CHECK_ERROR(error_of([&] { number(wrong, 1, 64); }), ErrorKind::invalid_argument,
                "N is '" + std::string(wrong) + "'; it can be 1 to 64");
  }
  CHECK_ERROR(error_of([] {
                reader_of({{"N", "x"}}).number("N");
              }),
              ErrorKind::invalid_argument, "N is 'x', not an integer");
  CHECK_ERROR(error_of([] {
                reader_of({{"N", "-1"}}).number<std::uint64_t>("N");
              }),
              ErrorKind::invalid_argument, "N is '-1', not an integer from 0 on");
  CHECK(reader_of({{"N", "4294967290"}}).number<std::uint32_t>("N") == 4294967290U);
  CHECK_ERROR(error_of([] { reader_of({{"N", "4294967296"}}).number("N"); }), ErrorKind::invalid_argument, "N is");
}

TEST_CASE("choices know no case, and list themselves") {
  static constexpr std::array<std::string_view, 3> kNames{"red", "green", "blue"};
  const auto choice = [](const char* text) { return reader_of({{"C", text}}).choice("C", kNames); };
  CHECK(choice("green") == 1U);
  CHECK(choice("Blue") == 2U);
  CHECK(choice("RED") == 0U);
  CHECK(!choice(""));
  CHECK_ERROR(error_of([&] { choice("gren"); }), ErrorKind::invalid_argument,
              "C is 'gren'; it can be red, green or blue");
}

TEST_CASE("unknown variables are named, with the one that is meant") {
  CHECK(unknown({"PATH=/bin", "LOCKSTEP_LOG=debug", "LOCKSTEP_TEST_CASES=1", "LOCKSTEP_BENCH_PYTHON=x"}).empty());
  const auto mistyped = unknown({"LOCKSTEP_IFNAM=eth0"});
  REQUIRE(mistyped.size() == 1);
  CHECK(contains(mistyped[0], "LOCKSTEP_IFNAM is set"));
  CHECK(contains(mistyped[0], "is LOCKSTEP_IFNAME meant?"));
  const auto several = unknown({"LOCKSTEP_ROOT_OF_SOURCES=/src", "LOCKSTEP_BACKENDS=gloo"});
  REQUIRE(several.size() == 2);
  CHECK(contains(several[0], "is LOCKSTEP_BACKEND meant?"));
  CHECK(contains(several[1], "there are: LOCKSTEP_ADDRESS, "));
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
