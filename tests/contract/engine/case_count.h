// How many random cases the tests of engines run, all of them together.
#pragma once

#include <cstdlib>

namespace lockstep::testing {

inline int random_cases() {
  if (const char* text = std::getenv("LOCKSTEP_TEST_CASES")) {
    if (const int cases = std::atoi(text); cases > 0) return cases;
  }
#if defined(__SANITIZE_THREAD__)
  return 150;
#elif defined(__SANITIZE_ADDRESS__)
  return 800;
#else
  return 5000;
#endif
}

}  // namespace lockstep::testing
