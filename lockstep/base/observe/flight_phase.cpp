#include "lockstep/base/observe/flight_phase.h"

#include <array>
#include <cstddef>

namespace lockstep::internal {
namespace {

// So that times can be added and subtracted.
constexpr std::int64_t kLastMoment = std::int64_t{1} << 60;

bool is_part_of(std::int64_t ns, const FlightPhase& phase) { return ns >= 0 && ns <= phase.end_ns - phase.begin_ns; }

}  // namespace

std::string_view to_string(StepPhase phase) {
  constexpr std::array<std::string_view, kStepPhases> kNames = {"data", "forward", "backward", "optimizer", "compute"};
  return kNames.at(static_cast<std::size_t>(phase));
}

bool is_sound(const FlightPhase& phase) {
  return phase.number != 0 && phase.step != 0 && phase.phase <= StepPhase::compute && phase.begin_ns >= 0 &&
         phase.begin_ns <= phase.end_ns && phase.end_ns <= kLastMoment && is_part_of(phase.waiting_ns, phase) &&
         is_part_of(phase.communicating_ns, phase) && is_part_of(phase.hidden_ns, phase);
}

}  // namespace lockstep::internal
