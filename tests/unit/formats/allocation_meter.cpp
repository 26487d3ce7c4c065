#include "tests/unit/formats/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace lockstep {

std::size_t g_live_bytes = 0;
std::size_t g_peak_bytes = 0;

}  // namespace lockstep

void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  lockstep::g_live_bytes += ::malloc_usable_size(memory);
  lockstep::g_peak_bytes = std::max(lockstep::g_peak_bytes, lockstep::g_live_bytes);
  return memory;
}
void operator delete(void* memory) noexcept {
  lockstep::g_live_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { ::operator delete(memory); }
