#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#if defined(__SANITIZE_THREAD__)
// An exception that several threads see is counted inside libstdc++, which is not instrumented: the sanitizer does not
// see that the thread that frees it comes after those that have read it.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:exception_ptr::_M_release\n"; }
#endif
