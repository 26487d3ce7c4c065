// StepReports gathers from time to time how the ranks spent their steps. timers of all ranks -> one collective ->
// report. All ranks call the same functions after the same steps; all get the same reports. Belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/timing/step_report.h"
#include "lockstep/train/ddp/timing/step_timer.h"

namespace lockstep::internal {

class StepReports {
 public:
  // A step is over, also for the timer. Nothing until a report is due: after 20 steps, and then after as many as take 5
  // s, which all ranks know from the previous report. Then a collective.
  std::optional<StepReport> after_step(StepTimer& timer, const ProcessGroup& group);
  // A report on the steps since the last one; nothing if they are too few. Else a collective.
  std::optional<StepReport> flush(StepTimer& timer, const ProcessGroup& group);
  // The straggler of the report before the last one.
  std::optional<int> straggler_before() const { return before_; }

 private:
  std::int64_t steps_ = 0;  // since the last report
  std::int64_t due_ = kStepsUntilFirst;
  std::optional<int> before_, straggler_;
};

}  // namespace lockstep::internal
