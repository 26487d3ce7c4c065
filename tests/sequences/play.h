// The side under test: one rank of a group plays a sequence through DistributedDataParallel, and compares what each
// event leaves. Blocks; collective.
#pragma once

#include <stdexcept>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "tests/sequences/oracle.h"
#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

// Something is not what it must be.
struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws Difference, and what the library throws.
void play(const Sequence& sequence, const std::vector<Occurrence>& expected, const ProcessGroup& group);

}  // namespace lockstep::sequences
