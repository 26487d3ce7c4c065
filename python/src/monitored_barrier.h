// A barrier through the store: it says which ranks did not come, and leaves the group's collectives as they are.
// Called by all ranks; blocks until rank 0 has seen all. Throws Error{timeout} naming the missing ranks on every rank.
#pragma once

#include <cstdint>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::python {

// `number` counts the calls of a group. Unless `wait_all_ranks`, rank 0 ends at the first rank that is missing.
void monitored_barrier(Store& store, int rank, int size, std::uint64_t number, Duration timeout, bool wait_all_ranks);

}  // namespace lockstep::python
