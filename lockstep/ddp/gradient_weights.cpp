#include "lockstep/ddp/gradient_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/ddp/autograd/gradient_hooks.h"
#include "lockstep/ddp/checks/ddp_errors.h"
#include "lockstep/group/believed.h"

namespace lockstep::internal {
namespace {

struct AllWeights {
  std::mutex mutex;
  std::vector<const GradientWeights*> all;  // protected by mutex
};

AllWeights& all_weights() {
  static AllWeights& instance = *new AllWeights;  // outlives static wrappers
  return instance;
}

}  // namespace

GradientWeights::GradientWeights(const TrainedParameters& parameters, ProcessGroup group, Weighting weighting)
    : parameters_(parameters), group_(std::move(group)), weighting_(weighting), set_aside_(parameters.size()) {
  const std::lock_guard lock(all_weights().mutex);
  all_weights().all.push_back(this);
}

GradientWeights::~GradientWeights() {
  const std::lock_guard lock(all_weights().mutex);
  std::erase(all_weights().all, this);
}

double factor_of_current_backward() {
  const int backward = current_backward();
  const std::lock_guard lock(all_weights().mutex);
  for (const GradientWeights* each : all_weights().all) {
    if (each->weighting_ == Weighting::samples && each->backward_ == backward) return each->factor();
  }
  return 1;
}

void GradientWeights::agree_on_unit(double weight) {
  if (weighting_ != Weighting::samples || unit_) return;
  const at::Tensor unit = at::tensor({weight}, at::kDouble);
  group_.broadcast(unit, 0, {.name = "DDP unit of weight"});
  const double told = believed(group_, [&] {
    return checked_weight(unit.item<double>(), "weight", {"first forward", 0});
  });
  unit_ = told == 0 ? 1 : told;
}

void GradientWeights::begin_backward(const ForwardNote& note) {
  note_ = note;
  backward_ = current_backward();
  sum_before_ = sum_;
  if (weighting_ != Weighting::samples) {
    sum_ = note_.joined ? 0 : 1;
  } else if (!note_.joined) {
    sum_ += factor();
  }
  if (std::exchange(is_new_sum_, false) && is_weighted()) set_aside_gradients();
}

void GradientWeights::set_aside_gradients() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (has_local_gradients_ && !gradient.is_sparse() && gradient.count_nonzero().item<std::int64_t>() != 0) {
      throw_on_all_ranks(group_, unweighted_gradient_error(group_.rank(), parameters_[i].name));
    }
    set_aside_[i] = std::exchange(gradient, at::Tensor());
  }
}

void GradientWeights::add_set_aside() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!set_aside_[i].defined()) continue;
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    const at::Tensor before = std::exchange(set_aside_[i], at::Tensor());
    gradient = gradient.defined() ? before.add_(gradient) : before;
  }
}

void GradientWeights::begin_new_sum() {
  sum_ = 0;
  is_new_sum_ = true;
  has_local_gradients_ = false;
}

void GradientWeights::roll_back() {
  add_set_aside();
  sum_ = sum_before_;
}

}  // namespace lockstep::internal
