#include "lockstep/train/optim/post_local_sgd_optimizer.h"

#include <charconv>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr const char* kStepName = "optimizer.averager.step";

}  // namespace

Checkpoint post_local_sgd_state(const torch::optim::Optimizer& optimizer, const ModelAverager& averager) {
  Checkpoint state;
  add_optimizer(state, optimizer);
  state.metadata[kStepName] = std::to_string(averager.step());
  return state;
}

void load_post_local_sgd_state(const Checkpoint& state, torch::optim::Optimizer& optimizer, ModelAverager& averager) {
  std::int64_t step = 0;
  const auto found = state.metadata.find(kStepName);
  if (found == state.metadata.end()) {
    log_warning(
        "PostLocalSgdOptimizer: the checkpoint does not have the step of the averager; its warm-up starts again");
  } else {
    const char* end = found->second.data() + found->second.size();
    const auto parsed = std::from_chars(found->second.data(), end, step);
    if (parsed.ptr != end || parsed.ec != std::errc() || step < 0) {
      throw Error(ErrorKind::corrupt_data,
                  std::string("the checkpoint's ") + kStepName + " is '" + found->second + "', not a number of steps");
    }
  }
  load_optimizer(state, optimizer);
  averager.set_step(step);
}

}  // namespace lockstep
