// A FlightPhase is the flight recorder's record of one phase of a training step, such as its forward. It is stored as
// it is: trivially copyable, without addresses. A value.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace lockstep::internal {

// What a rank does in a step. compute: forward, backward and optimizer, where they cannot be told apart.
enum class StepPhase : std::uint8_t { data, forward, backward, optimizer, compute };
inline constexpr int kStepPhases = 5;

std::string_view to_string(StepPhase phase);

// Times are nanoseconds of the recording machine's monotonic clock. Within the phase the rank waited for other ranks,
// communicated, and computed in the rest.
struct FlightPhase {
  std::uint64_t number = 0;  // of all phases of the process, from 1
  std::uint64_t step = 0;    // of the model, from 1
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t waiting_ns = 0;
  std::int64_t communicating_ns = 0;
  std::int64_t hidden_ns = 0;  // communication that went on while the rank computed
  std::uint32_t model = 0;     // of all wrapped models of the job, from 1
  StepPhase phase = StepPhase::data;
  std::uint8_t reserved[59] = {};
};
static_assert(sizeof(FlightPhase) == 120 && std::is_trivially_copyable_v<FlightPhase>);

// Whether a recorder can have written it; it may come from another process or a damaged file.
bool is_sound(const FlightPhase& phase);

}  // namespace lockstep::internal
