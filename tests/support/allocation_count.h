// Counts what a test program takes from the heap: malloc and its relatives, and operator new, which ends there. The
// program links allocation_count.cpp, whose malloc is then used by all shared libraries too. Thread-safe.
#pragma once

#include <cstdint>

namespace lockstep::testing {

// By all threads since the program began.
std::uint64_t allocations();
// Prints the call stacks of the first few allocations while it lives, for whoever looks for the cause of a count.
class AllocationTrace {
 public:
  AllocationTrace();
  ~AllocationTrace();
  AllocationTrace(const AllocationTrace&) = delete;
  AllocationTrace& operator=(const AllocationTrace&) = delete;
};

}  // namespace lockstep::testing
