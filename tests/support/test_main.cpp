#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/skip.h"

#if defined(__SANITIZE_THREAD__)
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();

// What is no race of ours, by the narrowest pattern.
extern "C" const char* __tsan_default_suppressions() {
  return
      // An exception that several threads see is counted inside libstdc++, which is not instrumented: the sanitizer
      // does not see that the thread that frees it comes after those that have read it.
      "race:exception_ptr::_M_release\n"
      // So is the text of a std::runtime_error, which all copies of it share.
      "race:^std::string::assign\n"
      "race:^std::runtime_error::~runtime_error\n"
      // libtorch is not instrumented either: what it does to a count of references, half of which are inlined here, and
      // who makes its first generator, which others then lock.
      "race:c10::detail::atomic_combined_refcount\n"
      "race:at::detail::createCPUGenerator\n"
      // Nor is oneDNN: its cache of primitives has a lock that the sanitizer does not see.
      "race:^dnnl::impl::\n"
      // A shard gives up its turn, and takes it again, within its own backward, where autograd holds the lock of a
      // node. The node is of the shard's own graph, so nobody who has the turn meanwhile ever waits for that lock.
      "deadlock:lockstep::internal::ShardExchange::gather\n";
}

// A forked child ends without the sanitizer's summary, so its first report ends it. Nobody has to linger at the end.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1:atexit_sleep_ms=0"; }
#endif

#if defined(__SANITIZE_ADDRESS__)
// What is too large is an error for the program to handle, as with the ordinary malloc. A program may have its own.
extern "C" __attribute__((visibility("default"), weak)) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
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
