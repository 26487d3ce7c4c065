// The states of the processes' default CPU random generators, to and from a checkpoint. generator -> bytes ->
// generator. Thread-safe: takes the generator's lock. Error{invalid_argument}: missing, or not such a state.
#pragma once

#include <string>

#include "lockstep/train/checkpoint/checkpoint.h"

namespace lockstep {

void add_random_state(Checkpoint& checkpoint, const std::string& name = "random.cpu");         // of this process
void load_random_state(const Checkpoint& checkpoint, const std::string& name = "random.cpu");  // continues from it

namespace internal {

// The state that load_random_state() loads, checked.
at::Tensor random_state(const Checkpoint& checkpoint, const std::string& name = "random.cpu");
// The state of this rank, if the checkpoint has those of `ranks` ranks: rank 0's as "random.cpu", rank 3's as
// "random.cpu.rank3". Otherwise each rank gets a different new state, derived from all stored states and the rank.
at::Tensor own_random_state(const Checkpoint& checkpoint, int rank, int ranks);
void set_random_state(const at::Tensor& state);

}  // namespace internal

}  // namespace lockstep
