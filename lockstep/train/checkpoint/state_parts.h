// A State, taken apart into tensors and texts, and put together again. State -> StateParts -> files -> Checkpoint ->
// State.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep::internal {

struct StateParts {
  // Replicated state: parameters, and the optimizer's state, except for parts that are spread over the ranks.
  std::map<std::string, at::Tensor> common = {};
  // State of this rank alone, or stored from it: rank 0 stores buffers and parameters that DDP ignores.
  std::map<std::string, at::Tensor> own = {};
  // Names of those tensors that only the step of an optimizer changes.
  std::set<std::string> stepped = {};
  std::map<std::string, std::string> metadata = {};
  // Rank 0's counts.
  std::string user = "null";
};

// As rank `rank` of `size` sees it. The tensors are the program's own memory where they can be. Does not communicate.
// Error{invalid_argument}: something that cannot be stored.
StateParts take_apart(const State& state, int rank, int size);

// Error{invalid_argument} if take_apart() or the files would refuse model or optimizer, before any training that could
// not be saved. Calls none of the program's own objects.
void require_storable(const State& state);

// Whether rank `rank` needs a tensor to put its state together.
bool is_wanted(std::string_view name, const State& state, int rank, int stored_ranks);

// The state's own memory for a tensor of a set, if it has that type and shape, is on the CPU and contiguous, and no
// other tensor's as well; otherwise undefined.
std::function<at::Tensor(const std::string& name, const SetTensor& tensor)> targets_in(const State& state);

// What changes a state, in this order.
struct LoadSteps {
  std::function<void()> load_objects;  // the program's own, which may refuse; model and optimizer are as before then
  std::function<void()> load_tensors;  // model, optimizer and random numbers
};

// Checks that a checkpoint, with all that is_wanted(), fits. load_tensors() calls fill(), which reads the tensors of
// targets_in(). Does not communicate. Error{invalid_argument} as of load_module() and load_optimizer(), or: it has no
// sampler, user values, ...
LoadSteps checked_load(const Checkpoint& checkpoint, const std::string& user, const State& state, int rank, int size,
                       const std::function<void()>& fill);

}  // namespace lockstep::internal
