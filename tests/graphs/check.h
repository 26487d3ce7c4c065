// Runs a case on both sides and compares what they leave.
#pragma once

#include <optional>
#include <string>

#include "tests/graphs/case.h"

namespace lockstep::testing {

// "rank R: <what differs>" for the first difference; none if there is none.
std::optional<std::string> difference(const Trace& found, const Trace& expected, int rank, double tolerance);

// Over threads of this process. A rank that throws fails the case, and so does one that waits for long.
// std::logic_error if the case cannot even be computed by hand.
std::optional<std::string> check(const Case& one);

}  // namespace lockstep::testing
