// What a tree of JSON values does not show, and a file from elsewhere must not have: values that are nested too deep,
// names that are twice in one object, a string or number of endless length, a zero byte, which the parser would take
// for the end. A callback of nlohmann's parse() would see names too, but goes through all members of an object whenever
// one of them ends. Text -> problem; pure; time is n log n.
#pragma once

#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// A sentence about the first problem, without a full stop; empty if there is none, and then nlohmann::json::parse()
// does not throw. most_depth: objects and lists around a value.
std::string problem_of_json(ByteView json, int most_depth);

}  // namespace lockstep::internal
