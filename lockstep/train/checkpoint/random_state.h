// The states of the processes' default CPU random generators, to and from a checkpoint. generator -> bytes ->
// generator. Thread-safe: takes the generator's lock. Error{invalid_argument}: missing, or not such a state.
#pragma once

#include <string>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/checkpoint.h"

namespace lockstep {

void add_random_state(Checkpoint& checkpoint, const std::string& name = "random.cpu");         // of this process
void load_random_state(const Checkpoint& checkpoint, const std::string& name = "random.cpu");  // continues from it

// Rank 0's checkpoint gets every rank's state: its own as above, rank 3's as "random.cpu.rank3". Collective.
void gather_random_states(Checkpoint& checkpoint, const ProcessGroup& group);
// Loads the state of this rank if states of `ranks` ranks were gathered. Otherwise each rank gets a different new
// state, derived from all stored states and the rank.
void load_own_random_state(const Checkpoint& checkpoint, int rank, int ranks);

namespace internal {

// The state that the two functions above load, checked.
at::Tensor random_state(const Checkpoint& checkpoint, const std::string& name = "random.cpu");
at::Tensor own_random_state(const Checkpoint& checkpoint, int rank, int ranks);
void set_random_state(const at::Tensor& state);

}  // namespace internal

}  // namespace lockstep
