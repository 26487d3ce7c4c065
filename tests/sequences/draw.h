// Seeds to sequences. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

// What may be drawn beside plain steps. Each seed draws some of them; those that are switched off are left out.
enum class Family {
  accumulate,      // backwards under no_sync()
  zero,            // zero_grad() in mid-accumulation, and on one rank
  zero_some,       // of some parameters
  samples,         // Weighting::samples
  retained,        // several backwards of one forward
  several,         // several forwards of one backward
  unused,          // find_unused_parameters
  fixed_graph,     // static_graph
  buckets,         // other sizes, or off
  hook,            // all_reduce_hook
  narrow,          // fp16_compress_hook, reduce_dtype
  bad,             // Inf on one rank, skipped or failed
  join,            // uneven numbers of batches
  join_active,     // the same, divided by the ranks that are active
  join_keeps,      // gradients are not zeroed in the step of a join
  norm,            // batch norm
  norm_in_eval,    // whose model is in evaluation mode
  throws,          // exceptions in forwards, and at the beginning of backwards
  throws_late,     // exceptions in the middle of backwards
  dropped,         // forwards without a backward
  inputs,          // autograd::grad
  bare,            // the module beside its wrapper
  evaluate,        // on any rank
  evaluate_grad,   // with gradients on
  evaluate_local,  // under no_sync()
  freeze,          // and thaw; with find_unused_parameters
  grow,            // parameters and modules that are registered or replaced
  two,             // two wrappers in one step
  aside,           // gradients are set aside and put back
  clip,            // clip_grad_norm
  reload,          // in another wrapper
  links,           // another transport
  list,            // a list of tensors as input
  first_alone,     // the first forward is under no_sync(), on some ranks
  buffers_alone,   // so is one that changes buffers, before an evaluation
  zero_optimizer,  // ZeroRedundancyOptimizer
  compare,         // compare_parameters_every
  power_sgd,       // the hook; values must be finite, and the same on all ranks
  lockstep,        // lockstep mode instead of everything that it refuses
  local_aside,     // what is set aside may not be averaged yet
  join_carry,      // outputs of one step of a join are used in the next
};
inline constexpr int kFamilies = 41;

const char* name_of(Family family);
// A bit for each family. Names with commas between; "all"; "all,-NAME" leaves one out. std::invalid_argument for
// others.
std::uint64_t families_of(const std::string& names);

// ranks: how many there are; 0: drawn too.
Sequence draw(std::uint64_t seed, std::uint64_t families, int ranks = 0);

}  // namespace lockstep::sequences
