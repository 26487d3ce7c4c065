// GradScaler multiplies the loss before backward, so that small gradients do not vanish in float16, and divides the
// gradients before the optimizer's step. A step with an infinite gradient or a NaN is skipped, and the scale becomes
// smaller; after many steps without one it grows. After torch.amp.GradScaler, with the same numbers.
// loss -> scale() -> backward -> unscale_() -> clipping -> step() -> update().
//
//   lockstep::GradScaler scaler;
//   optimizer.zero_grad();
//   scaler.scale(loss_of(ddp(x))).backward();
//   scaler.unscale_(optimizer);  // only to look at the gradients, or to clip them
//   lockstep::clip_grad_norm(ddp.parameters(), 1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// The gradients that a DistributedDataParallel averages are infinite on all ranks or on none, so ranks skip the same
// steps by themselves. Where gradients differ between ranks, ranks agree whether to skip, in unscale_() (or step(),
// which calls it): over the group of the constructor, or, if it has none, over that of a ZeroRedundancyOptimizer or a
// PostLocalSgdOptimizer. Then all ranks call both in the same order; one all-reduce of two numbers, which blocks and
// fails as ProcessGroup's calls do.
// Scale and findings are tensors on the device of the first scaled loss. Only step() waits for that device, once, and
// what reads the scale on the host: get_scale(), state(), save(), a loss or gradients on the CPU. Belongs to one
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>

#include "lockstep/comm/group/process_group.h"

namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // above 1
  double backoff_factor = 0.5;          // between 0 and 1
  std::int64_t growth_interval = 2000;  // updates without a skipped step, after which the scale grows
  bool enabled = true;                  // if not, losses and gradients are unchanged, and each step is made
};

// What continues a training with the same scales.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  std::int64_t growth_interval = 0;
  std::int64_t growth_tracker = 0;  // updates since the scale has changed, or a step was skipped
};

class GradScaler {
 public:
  // Error{invalid_argument}: a factor or an interval that the options do not allow.
  explicit GradScaler(const GradScalerOptions& options = {});
  // Ranks agree over the group, whatever the optimizer.
  explicit GradScaler(const ProcessGroup& group, const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // outputs * scale: a loss, or a tensor on any device.
  at::Tensor scale(const at::Tensor& outputs);
  // Divides the optimizer's gradients by the scale, in place: once before step(), when they are complete.
  // Error{invalid_argument}: nothing was scaled yet; a second call before update(), or one after step(); a gradient of
  // type float16, which cannot hold what is unscaled: then no gradient has changed.
  void unscale_(torch::optim::Optimizer& optimizer);
  // unscale_(), if it was not called, and optimizer.step(), if no gradient is infinite or NaN. Returns whether it has
  // called that. Error{invalid_argument}: a second call before update(); no parameter has a gradient, on any rank.
  bool step(torch::optim::Optimizer& optimizer);
  // The scale of the next iteration, once all optimizers have made their steps: a new one, or what follows from the
  // gradients. Error{invalid_argument}: no optimizer's gradients were looked at; a scale that is not above 0 and
  // finite.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const;  // 1 if not enabled
  bool is_enabled() const { return options_.enabled; }

  // Between update() and the next scale().
  GradScalerState state() const;
  // Factors and interval too, as in PyTorch. Error{invalid_argument} for values that no scaler has; then it is
  // unchanged.
  void load_state(const GradScalerState& state);
  // The same, for torch::save() and torch::load(), and for State::scaler.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { ready, unscaled, stepped };
  // Of an optimizer, since the last update().
  struct Checks {
    Stage stage = Stage::ready;
    // 1 or more if a gradient is infinite or NaN; where ranks agree, followed by 1 if a rank has any gradient.
    // Undefined: there is none.
    at::Tensor found;
  };

  void require_scale(const char* call) const;
  at::Tensor unscale_gradients(const torch::optim::Optimizer& optimizer) const;
  const ProcessGroup* group_of(const torch::optim::Optimizer& optimizer) const;

  GradScalerOptions options_;  // init_scale: of the scale and the tracker, as long as they are undefined
  std::int64_t init_growth_tracker_ = 0;
  const std::optional<ProcessGroup> group_;
  at::Tensor scale_;           // float32; undefined before the first scale(), which knows the device
  at::Tensor growth_tracker_;  // int32
  std::map<const torch::optim::Optimizer*, Checks> checks_;
};

}  // namespace lockstep
