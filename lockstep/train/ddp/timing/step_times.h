// How a rank spends the time of its training steps. Values; pure, and without torch.
#pragma once

#include <cstdint>

#include "lockstep/base/observe/flight_phase.h"

namespace lockstep {

// Sums over steps, in seconds. A step is the time between the ends of two optimizer steps, where those are known
// (TrainingRun::add_step() reports them), or else between the ends of two averaged backwards. Other work of a rank,
// such as evaluations and checkpoints, belongs to no step.
struct StepTimes {
  std::int64_t steps = 0;
  // In which this rank computed or was busy otherwise:
  double data = 0;     // until the forward begins; with the optimizer, where its end is not known
  double forward = 0;  // and the loss, until the first gradient
  double backward = 0;
  double optimizer = 0;  // and other work between the averaged gradients and add_step()
  double compute = 0;    // forward, backward and optimizer, if not measured separately: one rank, lockstep mode
  // In which it did not:
  double waiting = 0;        // until the last rank entered a collective
  double communicating = 0;  // the rest of its collectives
  // Communication that overlapped with backward: not part of the total.
  double hidden = 0;

  double total() const { return data + forward + backward + optimizer + compute + waiting + communicating; }
  StepTimes& operator+=(const StepTimes& other);
  // Of one step.
  StepTimes mean() const;
};

namespace internal {
double& part_of(StepTimes& times, StepPhase phase);
double part_of(const StepTimes& times, StepPhase phase);
}  // namespace internal

}  // namespace lockstep
