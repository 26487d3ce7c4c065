// The state of PowerSGD between iterations, and its conversion to and from a checkpoint. Belongs to the thread that
// runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

class PowerSgdState {
 public:
  struct Counters {
    std::int64_t iteration = 0, random_draws = 0, next_report = 0, elements_before = 0, elements_after = 0;
    std::int64_t ranks = 0, rank = 0;  // of the last iteration; that has made the errors
  };
  // By name: of a parameter, or of all parameters of a bucket that is one matrix.
  using Memory = std::map<std::string, at::Tensor>;

  explicit PowerSgdState(std::uint32_t random_seed) : random_seed_(random_seed), random_(random_seed) {}

  // The seed of the next random Q.
  std::uint64_t next_seed();

  // An iteration begins. The ranks' errors cancel each other in part, and only their sum is missing from the gradients:
  // unless each rank has loaded its own, all begin again. Collective after load().
  void note_ranks(const ProcessGroup& group, bool uses_errors);

  // See PowerSgd::state() and load_state().
  std::map<std::string, at::Tensor> tensors(const std::string& prefix) const;
  void load(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix);

  // The tensor of that name, on the device of `like`. Error{invalid_argument} if it does not match `like`. what: "Q".
  static at::Tensor remembered(const Memory& memory, const std::string& name, const at::Tensor& like, const char* what);

  Counters counters;
  Memory errors;           // still missing from this rank's gradients
  Memory qs;               // with warm start
  bool is_loaded = false;  // since the last iteration

 private:
  const std::uint32_t random_seed_;
  std::mt19937 random_;
};

}  // namespace lockstep::internal
