#include "lockstep/ddp/hooks/post_local_sgd.h"

#include <utility>

namespace lockstep {
namespace {

BucketResult average(const at::Tensor& gradients, const ProcessGroup& group) {
  const Work work = group.all_reduce_async({gradients}, ReduceOp::avg, {.name = "post-local SGD gradients"});
  return [gradients, work] {
    work.wait();
    return gradients;
  };
}

}  // namespace

CommHook post_local_sgd_hook(std::shared_ptr<PostLocalSgdState> state) {
  return [state = std::move(state)](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
    if (state->step < state->start_step) {
      if (bucket.is_last()) ++state->step;
      return average(bucket.buffer(), group);
    }
    if (state->subgroup) return average(bucket.buffer(), *state->subgroup);
    return [gradients = bucket.buffer()] { return gradients; };
  };
}

}  // namespace lockstep
