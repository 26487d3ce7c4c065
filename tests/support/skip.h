// Test cases that need what a machine may lack, a GPU or root, are marked with needs("gpu"), and lockstep_test() makes
// a ctest entry of each need that it is told of. A case that lacks it calls skip() and returns; then its program ends
// with kSkipped, which ctest shows as skipped and not as passed.
#pragma once

#include <doctest/doctest.h>

#include <string>

namespace lockstep::testing {

inline constexpr int kSkipped = 77;

inline auto needs(const char* what) { return doctest::test_suite(what); }
void skip(const std::string& reason);

}  // namespace lockstep::testing
