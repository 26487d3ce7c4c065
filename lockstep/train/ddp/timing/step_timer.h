// A StepTimer divides the time of one rank's training steps into phases, and its waiting and communication in each.
// wrapper, reducer -> StepTimer -> flight recorder, step reports. Belongs to the thread that runs forward and backward.
// Nothing blocks or takes memory; an event costs some tens of nanoseconds.
//
//   forward_begins -> backward_begins -> backward_ends -> step_ends
//     forward           backward           optimizer       data, until the next forward begins
//
// Forwards and backwards that are not averaged (accumulation) belong to the step that their average ends. Without
// step_ends() a step ends with its averaged backward, and the optimizer counts as data of the next one. The first step,
// in which buckets are formed and memory is taken for the first time, is left out of all sums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/observe/flight_phase.h"
#include "lockstep/comm/collective/call_meter.h"
#include "lockstep/train/ddp/timing/step_times.h"

namespace lockstep::internal {

// The measurements of a rank since its last report.
struct StepWindow {
  StepTimes times;
  std::vector<float> waits;  // seconds of waiting by step, of the last kMostWaits steps, the oldest first
  static constexpr std::size_t kMostWaits = 1024;
};

class StepTimer {
 public:
  // Its sources, which must outlive it.
  struct Sources {
    const Clock& clock;
    std::function<CallTimes(TimePoint)> calls;  // of the group's collectives so far
    std::function<void(FlightPhase&)> record;   // gets each completed phase; may be empty
    std::function<void()> count_step = {};      // a step is over; may be empty
    std::uint32_t model = 1;                    // see FlightPhase
  };
  explicit StepTimer(Sources sources) : sources_(std::move(sources)) {}

  void forward_begins();
  void backward_begins();
  enum class Gradients { averaged, local };
  void backward_ends(Gradients gradients);
  // The optimizer has made its step.
  void step_ends();
  // Instead of forward and backward, where they are not seen: until compute_ends(), or step_ends() if there is none.
  void compute_begins();
  void compute_ends();
  // The work since a step and until the next event belongs to no step.
  void leave_out();

  // Within a backward: this rank communicates, instead of computing, while this exists. They do not nest.
  class Communication {
   public:
    // sum: gets the seconds too.
    Communication(StepTimer& timer, double& sum);
    ~Communication();
    Communication(const Communication&) = delete;
    Communication& operator=(const Communication&) = delete;

   private:
    StepTimer& timer_;
    double& sum_;
    TimePoint start_;
    CallTimes calls_;
  };

  // Of all steps so far.
  const StepTimes& total() const { return total_; }
  // Since the last call. Keeps nothing of it.
  StepWindow take_window();

 private:
  //   idle      nothing is measured: nothing has begun, or it failed
  //   gap       a step is over
  //   partial   a backward is over that was not averaged
  //   averaged  a backward is over that was
  enum class State : std::uint8_t { idle, gap, forward, backward, partial, averaged, compute };
  struct Span {
    TimePoint begin, end;
    Duration waiting{}, communicating{}, hidden{};
  };

  // Ends the interval since the last change, as this phase of the step, and begins another state.
  void change(State next, StepPhase ended);
  // The same, and drops the interval.
  void restart(State next);
  Span span_until(TimePoint now, const CallTimes& calls, bool is_backward) const;
  void add(StepPhase phase, const Span& span);
  void end_step();

  const Sources sources_;
  State state_ = State::idle;
  TimePoint since_;
  CallTimes calls_;  // at that time
  Duration blocked_{};
  CallTimes blocked_calls_;  // of Communications since then

  std::uint64_t step_ = 1;  // that is under way
  StepTimes current_;       // of it
  StepTimes total_, window_;
  std::array<float, StepWindow::kMostWaits> waits_{};  // of window_, by step modulo their number
};

}  // namespace lockstep::internal
