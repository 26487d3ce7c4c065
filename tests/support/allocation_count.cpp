#include "tests/support/allocation_count.h"

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace lockstep::testing {

namespace {

constexpr int kTraces = 5;

std::atomic<std::uint64_t> count{0};
std::atomic<int> traces_left{0};
thread_local bool is_tracing = false;

void note() {
  count.fetch_add(1, std::memory_order_relaxed);
  if (traces_left.load(std::memory_order_relaxed) <= 0 || is_tracing) return;
  is_tracing = true;
  if (traces_left.fetch_sub(1) > 0) {
    void* frames[40];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 40), STDERR_FILENO);
    static_cast<void>(!::write(STDERR_FILENO, "\n", 1));
  }
  is_tracing = false;
}

}  // namespace

std::uint64_t allocations() { return count.load(); }

AllocationTrace::AllocationTrace() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads what it needs
  traces_left = kTraces;
}
AllocationTrace::~AllocationTrace() { traces_left = 0; }

}  // namespace lockstep::testing

using lockstep::testing::note;

extern "C" {

void* malloc(std::size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t number, std::size_t bytes) {
  note();
  return __libc_calloc(number, bytes);
}
void* realloc(void* block, std::size_t bytes) {
  note();
  return __libc_realloc(block, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) {
  note();
  *block = __libc_memalign(alignment, bytes);
  return *block == nullptr ? ENOMEM : 0;
}

}  // extern "C"
