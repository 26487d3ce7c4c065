// Optimizers whose step() communicates: a step that one rank leaves out, all ranks of the group must leave out.
// step_group() -> GradScaler, which asks the group whether any rank found an infinite gradient.
#pragma once

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

class CollectiveStep {
 public:
  virtual ~CollectiveStep() = default;
  // Valid as long as the optimizer.
  virtual const ProcessGroup& step_group() const = 0;
};

}  // namespace lockstep::internal
