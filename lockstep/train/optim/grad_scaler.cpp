#include "lockstep/train/optim/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/optim/collective_step.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::optim::Optimizer;

// PyTorch's names.
constexpr const char* kScale = "scale";
constexpr const char* kGrowthFactor = "growth_factor";
constexpr const char* kBackoffFactor = "backoff_factor";
constexpr const char* kGrowthInterval = "growth_interval";
constexpr const char* kGrowthTracker = "_growth_tracker";

[[noreturn]] void refuse_scaler(const std::string& why) {
  throw Error(ErrorKind::invalid_argument, "GradScaler: " + why);
}

void check_scale(const char* name, double scale) {
  // As the float32 that it becomes.
  if (std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0) return;
  refuse_scaler(fmt::format("{} is {}; it must be above 0 and finite", name, scale));
}

void check(const GradScalerOptions& options) {
  check_scale("init_scale", options.init_scale);
  if (!(options.growth_factor > 1) || !std::isfinite(options.growth_factor)) {
    refuse_scaler(fmt::format("growth_factor is {}; it must be above 1", options.growth_factor));
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    refuse_scaler(fmt::format("backoff_factor is {}; it must be above 0 and below 1", options.backoff_factor));
  }
  if (options.growth_interval < 1) {
    refuse_scaler(fmt::format("growth_interval is {}; it must be 1 or more", options.growth_interval));
  }
}

// Gradients that one call unscales.
struct Batch {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

[[noreturn]] void refuse_float16(std::size_t group, std::size_t parameter, const at::Tensor& gradient) {
  refuse_scaler(
      fmt::format("the gradient of parameter {} {} of parameter group {} is of type float16, in which gradients lose "
                  "their digits when they are unscaled. Keep parameters in float32 and compute in float16: with "
                  "DdpOptions::mixed_precision, or torch's autocast",
                  parameter, gradient.sizes().vec(), group));
}

// The memory of the gradients; of a sparse one the elements that it holds, where a row may be several times.
std::vector<Batch> batches_of(const Optimizer& optimizer) {
  std::vector<Batch> batches;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf) refuse_float16(group, i, gradient);
      at::Tensor elements = gradient.is_sparse() ? gradient.detach()._values() : gradient.detach();
      const auto fits = [&](const Batch& batch) {
        return batch.device == elements.device() && batch.dtype == elements.scalar_type();
      };
      auto batch = std::ranges::find_if(batches, fits);
      if (batch == batches.end()) {
        batch = batches.insert(batch, {.device = elements.device(), .dtype = elements.scalar_type(), .gradients = {}});
      }
      batch->gradients.push_back(std::move(elements));
    }
  }
  return batches;
}

// A number that the host computes with must have arrived there.
at::Tensor on_device(const at::Tensor& number, at::Device device) {
  return number.to(device, number.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

at::Tensor read(torch::serialize::InputArchive& archive, const char* name, at::ScalarType dtype) {
  at::Tensor value;
  if (archive.try_read(name, value, /*is_buffer=*/true) && value.numel() == 1 && value.scalar_type() == dtype) {
    return value;
  }
  refuse_scaler(fmt::format("the archive does not hold a GradScaler: it has no number {}", name));
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) { check(options_); }

GradScaler::GradScaler(const ProcessGroup& group, const GradScalerOptions& options) : options_(options), group_(group) {
  check(options_);
}

void GradScaler::require_scale(const char* call) const {
  if (scale_.defined()) return;
  refuse_scaler(fmt::format("{} was called before scale(); call backward() on scale(loss)", call));
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) return outputs;
  if (!outputs.defined()) refuse_scaler("scale() got an undefined tensor");
  if (!scale_.defined()) {
    const auto on = [&](at::ScalarType dtype) { return at::TensorOptions(outputs.device()).dtype(dtype); };
    scale_ = at::full({}, options_.init_scale, on(at::kFloat));
    growth_tracker_ = at::full({}, init_growth_tracker_, on(at::kInt));
  }
  return outputs * on_device(scale_, outputs.device());
}

const ProcessGroup* GradScaler::group_of(const Optimizer& optimizer) const {
  if (group_) return &*group_;
  const auto* const collective = dynamic_cast<const CollectiveStep*>(&optimizer);
  return collective == nullptr ? nullptr : &collective->step_group();
}

// Returns Checks::found, of this rank alone.
at::Tensor GradScaler::unscale_gradients(const Optimizer& optimizer) const {
  const std::vector<Batch> batches = batches_of(optimizer);
  if (batches.empty()) return {};
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);  // PyTorch's order of operations
  at::Tensor found = at::zeros({1}, scale_.options());
  for (const Batch& batch : batches) {
    const bool is_here = batch.device == scale_.device();
    at::Tensor found_there = is_here ? found : at::zeros({1}, scale_.options().device(batch.device));
    at::_amp_foreach_non_finite_check_and_unscale_(batch.gradients, found_there, on_device(inverse, batch.device));
    if (!is_here) found.add_(on_device(found_there, scale_.device()));
  }
  return found;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  require_scale("unscale_()");
  Checks& checks = checks_[&optimizer];
  if (checks.stage == Stage::unscaled) {
    refuse_scaler(
        "unscale_() has already been called on this optimizer since the last update(); its gradients are unscaled");
  }
  if (checks.stage == Stage::stepped) {
    refuse_scaler("unscale_() was called after step() on this optimizer; call it before, or update() in between");
  }
  at::Tensor found = unscale_gradients(optimizer);
  if (const ProcessGroup* const group = group_of(optimizer)) {
    const bool has_gradients = found.defined();
    at::Tensor both = at::full({2}, has_gradients ? 1 : 0, scale_.options());
    if (has_gradients) both.narrow(0, 0, 1).copy_(found);
    group->all_reduce(both, ReduceOp::max, {.name = "grad_scaler"});
    found = std::move(both);
  }
  checks = {.stage = Stage::unscaled, .found = std::move(found)};
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  require_scale("step()");
  Checks& checks = checks_[&optimizer];
  if (checks.stage == Stage::stepped) {
    refuse_scaler("step() has already been called on this optimizer since the last update()");
  }
  if (checks.stage == Stage::ready) unscale_(optimizer);
  const at::Tensor found = checks.found.defined() ? checks.found.to(at::kCPU) : at::zeros({2}, at::kFloat);
  const auto* const flags = found.const_data_ptr<float>();
  if (found.numel() == 2 && flags[1] == 0) {
    refuse_scaler(
        "step(): no inf checks were recorded for this optimizer, since none of its parameters has a gradient. Call "
        "backward() on scale(loss) first; NonFinite::skip_step drops gradients, so leave it out");
  }
  const bool is_finite = flags[0] == 0;
  if (is_finite) optimizer.step();
  checks.stage = Stage::stepped;
  return is_finite;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (new_scale) check_scale("the scale for update()", *new_scale);
  if (!options_.enabled) return;
  require_scale("update()");
  if (new_scale) {
    scale_.fill_(*new_scale);
    checks_.clear();
    return;
  }
  at::Tensor found;
  for (const auto& [optimizer, checks] : checks_) {
    if (!checks.found.defined()) continue;
    const at::Tensor one = checks.found.narrow(0, 0, 1);
    found = found.defined() ? found + one : one;
  }
  if (!found.defined()) {
    refuse_scaler("update(): no inf checks were recorded; call step() on the optimizers first, or give a new scale");
  }
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  checks_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

GradScalerState GradScaler::state() const {
  const bool is_used = scale_.defined();
  return {.scale = is_used ? scale_.item<double>() : options_.init_scale,
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = is_used ? growth_tracker_.item<std::int64_t>() : init_growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  GradScalerOptions loaded = options_;
  loaded.init_scale = state.scale;
  loaded.growth_factor = state.growth_factor;
  loaded.backoff_factor = state.backoff_factor;
  loaded.growth_interval = state.growth_interval;
  check(loaded);
  if (state.growth_tracker < 0 || state.growth_tracker > std::numeric_limits<std::int32_t>::max()) {
    refuse_scaler(fmt::format("growth_tracker is {}; it must be a number of updates", state.growth_tracker));
  }
  options_ = loaded;
  init_growth_tracker_ = state.growth_tracker;
  if (!scale_.defined()) return;
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  const GradScalerState saved = state();
  const auto write = [&](const char* name, const at::Tensor& value) { archive.write(name, value, /*is_buffer=*/true); };
  write(kScale, at::full({1}, saved.scale, at::kDouble));
  write(kGrowthFactor, at::full({1}, saved.growth_factor, at::kDouble));
  write(kBackoffFactor, at::full({1}, saved.backoff_factor, at::kDouble));
  write(kGrowthInterval, at::full({1}, saved.growth_interval, at::kLong));
  write(kGrowthTracker, at::full({1}, saved.growth_tracker, at::kLong));
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  const auto number = [&](const char* name) { return read(archive, name, at::kDouble).item<double>(); };
  const auto count = [&](const char* name) { return read(archive, name, at::kLong).item<std::int64_t>(); };
  load_state({.scale = number(kScale),
              .growth_factor = number(kGrowthFactor),
              .backoff_factor = number(kBackoffFactor),
              .growth_interval = count(kGrowthInterval),
              .growth_tracker = count(kGrowthTracker)});
}

}  // namespace lockstep
