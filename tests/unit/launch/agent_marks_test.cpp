#include "lockstep/job/launch/agent_marks.h"

#include <doctest/doctest.h>

#include <string>

namespace agent_marks_test {

using namespace lockstep::internal;

namespace {

const std::string kSecret = "0123456789abcdef";

}  // namespace

TEST_CASE("marks are taken out of what an agent says, wherever they are and however they come") {
  const AgentEnd end{.stage = AgentStage::joined, .status = {.code = 0, .signal = 9}};
  const std::string bytes = stage_mark(kSecret, AgentStage::gathering) + "one\ntw" +
                            stage_mark(kSecret, AgentStage::joined) + "o\n" + end_mark(kSecret, end) + "three";
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    MarkReader reader(kSecret);
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += size)
      text += reader.take(std::string_view(bytes).substr(at, size));
    CHECK(text + reader.rest() == "one\ntwo\nthree");
    CHECK(reader.stage() == AgentStage::joined);
    REQUIRE(reader.end().has_value());
    CHECK(reader.end()->stage == AgentStage::joined);
    CHECK(reader.end()->status.shell_code() == 137);
  }
}

TEST_CASE("the end of an agent that has not joined") {
  MarkReader reader(kSecret);
  CHECK(reader.take(end_mark(kSecret, {.stage = AgentStage::gathering, .status = {.code = 127}})).empty());
  CHECK(reader.end()->stage == AgentStage::gathering);
  CHECK(reader.end()->status.code == 127);
}

TEST_CASE("what has not the secret is no mark") {
  MarkReader reader(kSecret);
  const std::string text = "\x1elockstep agent ended: 0\n" + end_mark("fedcba9876543210", {}) +
                           "a\x1e"
                           "b\n\x1e";
  std::string taken = reader.take(text);
  CHECK(taken + reader.rest() == text);
  const std::string no_numbers = "\x1e" + kSecret + " hello\n\x1e" + kSecret + " 7\n\x1e" + kSecret + " 1 2\n\x1e" +
                                 kSecret + " \n\x1e" + kSecret + "\n";
  taken = reader.take(no_numbers);
  CHECK(taken + reader.rest() == no_numbers);
  CHECK(reader.stage() == AgentStage::absent);
  CHECK_FALSE(reader.end().has_value());
}

}  // namespace agent_marks_test
