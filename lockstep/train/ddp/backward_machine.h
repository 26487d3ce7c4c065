// The states of synchronised training, and what each event does. The reducer asks; pure.
//
//   idle        no forward of the wrapper waits for its backward
//   armed       one does
//   collecting  a backward through such a forward computes gradients
//   finishing   it has computed all of them, and waits for their averages
//   abandoned   a backward ended early, by an exception; its reductions are still in flight
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

enum class BackwardState : std::uint8_t { idle, armed, collecting, finishing, abandoned };

enum class BackwardEvent : std::uint8_t {
  forward,         // of the wrapper, with gradients on, begins
  begin,           // the backward that runs turns out to go through such a forward
  gradient,        // of a parameter, in that backward
  stray_gradient,  // of a parameter, in a backward that goes through no forward of the wrapper
  end,             // that backward has computed everything
  lost,            // that backward has ended without it, by an exception
  finished,        // averages are there, and no other forward waits
  finished_one,    // averages are there, and another forward waits
  failed           // averages did not come
};

enum class BackwardAction : std::uint8_t {
  nothing,
  start,            // collect gradients
  count,            // this gradient
  note_stray,       // the gradients may be those of the wrapper's forward
  finish,           // reduce the rest, and wait
  release,          // the state of a running backward
  drain,            // wait for reductions in flight, and drop them
  drain_and_start,  // both, in this order
  refuse            // the program does this at the wrong time
};

struct BackwardTransition {
  BackwardState state;
  BackwardAction action;
  friend bool operator==(const BackwardTransition&, const BackwardTransition&) = default;
};

BackwardTransition next(BackwardState state, BackwardEvent event);

std::string_view to_string(BackwardState state);
std::string_view to_string(BackwardEvent event);

}  // namespace lockstep::internal
