// Problems of untrusted JSON that the tree of its values does not show: values that are nested too deeply, duplicate
// names in one object, a very long string or number, a zero byte, which the parser would take for the end. A callback
// of nlohmann's parse() would see names too, but visits all members of an object whenever one of them ends. Text ->
// problem; pure; time is n log n.
#pragma once

#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// A sentence about the first problem, without a full stop; empty if there is none, and then nlohmann::json::parse()
// does not throw. most_depth: objects and lists around a value.
std::string problem_of_json(ByteView json, int most_depth);

}  // namespace lockstep::internal
