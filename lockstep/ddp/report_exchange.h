// What ranks tell each other at the end of a backward, in one collective, if the options ask for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "lockstep/ddp/backward_report.h"
#include "lockstep/group/process_group.h"

namespace lockstep {

// Keeps its memory from call to call.
class ReportExchange {
 public:
  // Blocks. parameters: of the model. call: of the collective. `mine.used` is as long on all ranks. The result lasts
  // until the next call. Error{corrupt_data} on a rank that cannot believe what it hears also ends the group, so that
  // no other waits for it.
  const JointReport& exchange(const BackwardReport& mine, std::size_t parameters, const ProcessGroup& group,
                              const CallOptions& call);

 private:
  at::Tensor sent_;
  at::Tensor told_;  // by all ranks
  JointReport joint_;
};

}  // namespace lockstep
