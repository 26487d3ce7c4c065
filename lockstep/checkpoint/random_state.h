// The state of the process's default CPU random generator, to and from a checkpoint. generator -> bytes -> generator.
// Thread-safe as the generator is: it takes the generator's lock. Error{invalid_argument}: missing, or not such a
// state.
#pragma once

#include <string>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep {

void add_random_state(Checkpoint& checkpoint, const std::string& name = "random.cpu");
void load_random_state(const Checkpoint& checkpoint, const std::string& name = "random.cpu");

}  // namespace lockstep
