#include "lockstep/train/ddp/comm_hooks/post_local_sgd.h"

#include <utility>

#include "lockstep/train/ddp/comm_hooks/default_hooks.h"

namespace lockstep {

CommHook post_local_sgd_hook(std::shared_ptr<PostLocalSgdState> state) {
  return [state = std::move(state)](GradBucket& bucket, const ProcessGroup& group) -> BucketResult {
    if (state->step < state->start_step) {
      if (bucket.is_last()) ++state->step;
      return all_reduce_hook()(bucket, group);
    }
    require_unweighted(bucket, "post_local_sgd_hook");
    if (state->subgroup) return all_reduce_hook()(bucket, *state->subgroup);
    return noop_hook()(bucket, group);
  };
}

}  // namespace lockstep
