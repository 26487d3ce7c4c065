#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/skip.h"

#if defined(__SANITIZE_THREAD__)
// An exception that several threads see is counted inside libstdc++, which is not instrumented: the sanitizer does not
// see that the thread that frees it comes after those that have read it.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:exception_ptr::_M_release\n"; }
#endif

namespace lockstep::testing {

static bool has_skipped = false;

void skip(const std::string& reason) {
  MESSAGE("skipped: " << reason);
  has_skipped = true;
}

}  // namespace lockstep::testing

int main(int argc, char** argv) {
  const int result = doctest::Context(argc, argv).run();
  return result == 0 && lockstep::testing::has_skipped ? lockstep::testing::kSkipped : result;
}
