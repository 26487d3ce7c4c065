#include "lockstep/train/ddp/backward_machine.h"

#include <array>
#include <cstddef>

namespace lockstep::internal {
namespace {

constexpr std::size_t kStates = 5, kEvents = 9;

// The columns are the events in their order: forward, begin, gradient, stray_gradient, end, lost, finished,
// finished_one, failed. Impossible events are refused.
constexpr std::array<std::array<BackwardTransition, kEvents>, kStates> table() {
  using S = BackwardState;
  using A = BackwardAction;
  const auto refused = [](S state) { return BackwardTransition{state, A::refuse}; };
  constexpr auto idle = S::idle, armed = S::armed, collecting = S::collecting, finishing = S::finishing,
                 abandoned = S::abandoned;
  const auto no_idle = refused(idle), no_armed = refused(armed), no_collecting = refused(collecting),
             no_finishing = refused(finishing), no_abandoned = refused(abandoned);
  // clang-format off
  return {{
      {{{armed, A::nothing}, {collecting, A::start}, no_idle, {idle, A::nothing},
        no_idle, no_idle, no_idle, no_idle, no_idle}},
      {{{armed, A::nothing}, {collecting, A::start}, no_armed, {armed, A::note_stray},
        no_armed, no_armed, no_armed, no_armed, no_armed}},
      {{{collecting, A::nothing}, {collecting, A::nothing}, {collecting, A::count}, no_collecting,
        {finishing, A::finish}, {abandoned, A::release}, no_collecting, no_collecting, no_collecting}},
      {{no_finishing, no_finishing, no_finishing, {finishing, A::nothing},
        no_finishing, no_finishing, {idle, A::nothing}, {armed, A::nothing}, {abandoned, A::release}}},
      {{{armed, A::drain}, {collecting, A::drain_and_start}, no_abandoned, {abandoned, A::nothing},
        no_abandoned, no_abandoned, no_abandoned, no_abandoned, no_abandoned}},
  }};
  // clang-format on
}

}  // namespace

BackwardTransition next(BackwardState state, BackwardEvent event) {
  static constexpr auto kTable = table();
  return kTable.at(static_cast<std::size_t>(state)).at(static_cast<std::size_t>(event));
}

std::string_view to_string(BackwardState state) {
  constexpr std::array<std::string_view, kStates> kNames = {"idle", "armed", "collecting", "finishing", "abandoned"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string_view to_string(BackwardEvent event) {
  constexpr std::array<std::string_view, kEvents> kNames = {
      "forward", "begin", "gradient", "stray_gradient", "end", "lost", "finished", "finished_one", "failed"};
  return kNames.at(static_cast<std::size_t>(event));
}

}  // namespace lockstep::internal
