// The settings that a forward determines for its backward. A value.
#pragma once

namespace lockstep::internal {

struct ForwardNote {
  bool synchronise = true;
  bool is_training = true;        // in evaluation some ranks may make it alone, if no backward goes through it
  bool joined = false;            // this rank contributes nothing: see join_state.h
  double weight = 1;              // of this rank's gradients, where gradients are weighted by samples
  bool divide_by_active = false;  // averages are over the ranks that have not joined, instead of over all
};

}  // namespace lockstep::internal
