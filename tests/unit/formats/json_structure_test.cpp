#include "lockstep/formats/safetensors/json_structure.h"

#include <doctest/doctest.h>

#include "lockstep/formats/safetensors/safetensors_header.h"

namespace json_structure_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::string problem(const std::string& json, int most_depth = 2) { return problem_of_json(json, most_depth); }

}  // namespace

TEST_CASE("what is JSON has no problem") {
  for (const char* json : {"1", "null", "[]", R"({"a": {"a": 1}, "b": {"a": -1.5e3}})", R"([["a", "a"], {"a": true}])",
                           " {\"a\": \"\\u0000\"}\n"}) {
    CAPTURE(json);
    CHECK(problem(json).empty());
  }
}

TEST_CASE("what is no JSON is refused, also after the end and at a zero byte") {
  for (const char* json : {"", "{", "{} {}", "[1,]", "{1: 2}", "1e999", "'a'", "\"\xff\"", "// a\n1"}) {
    CAPTURE(json);
    CHECK(problem(json).starts_with("it is not JSON: "));
  }
  CHECK(problem(std::string("{}\0x", 4)) == "it contains a zero byte");
}

TEST_CASE("a name that is twice in one object is refused, however it is written") {
  CHECK(problem(R"({"a": 1, "b": 2, "a": 1})") == "the name 'a' appears twice");
  CHECK(problem(R"({"a": 1, "\u0061": 2})") == "the name 'a' appears twice");
  CHECK(problem(R"([{"a": {}, "b": [{}, {}], "a": 2}])", 4) == "the name 'a' appears twice");
}

TEST_CASE("objects and lists are nested as deep as is allowed, and no deeper") {
  CHECK(problem("[{}]", 2).empty());
  CHECK(problem("[{}]", 1) == "its values are nested too deeply");
  CHECK(problem("[[], {\"a\": []}]", 2) == "its values are nested too deeply");
  CHECK(problem(std::string(100'000, '['), 64) == "its values are nested too deeply");
}

TEST_CASE("strings and numbers are as long as is allowed, and no longer") {
  const std::string most(SafetensorsLimits::kTokenBytes - 1, 'x');
  CHECK(problem('"' + most.substr(1) + '"').empty());
  CHECK(problem('"' + most + '"') == "a string or number in it is too long");
  CHECK(problem(std::string(SafetensorsLimits::kTokenBytes + 1, '1')) == "a string or number in it is too long");
}

}  // namespace json_structure_test
