// The side under test: DistributedDataParallel plays a case on one rank of a group. Blocks; collective.
#pragma once

#include "lockstep/comm/group/process_group.h"
#include "tests/graphs/case.h"

namespace lockstep::testing {

Trace run_ddp(const Case& one, const ProcessGroup& group);

}  // namespace lockstep::testing
