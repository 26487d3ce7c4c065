#include "lockstep/train/ddp/contributions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/comm/group/believed.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep::internal {
namespace {

struct AllContributions {
  std::mutex mutex;
  std::vector<Contributions*> all;  // protected by mutex
};

AllContributions& all_contributions() {
  static AllContributions& instance = *new AllContributions;  // outlives static wrappers
  return instance;
}

// Whether all numbers of floating point in a piece of memory are 0 or -0; `size`: bytes of each.
bool is_zero_memory(std::span<const std::uint8_t> bytes, std::size_t size) {
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t word = 0;
    if (at % sizeof word == 0 && bytes.size() - at >= sizeof word) {
      std::memcpy(&word, &bytes[at], sizeof word);
      if (word == 0) {
        at += sizeof word;
        continue;
      }
    }
    const bool is_sign = at % size == size - 1;
    if ((bytes[at] & (is_sign ? 0x7F : 0xFF)) != 0) return false;
    ++at;
  }
  return true;
}

at::Tensor nonzeros_in(const at::Tensor& gradient) {
  return (gradient.is_sparse() ? gradient._values() : gradient).count_nonzero();
}

// Stops at the first value that is not, where it can.
bool is_zero(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  if (!values.is_cpu() || !has_plain_memory(values)) return nonzeros_in(values).item<std::int64_t>() == 0;
  const std::size_t size = values.element_size() / (values.is_complex() ? 2 : 1);
  return is_zero_memory({static_cast<const std::uint8_t*>(values.const_data_ptr()), values.nbytes()}, size);
}

// Tensors of inference mode do not know how often they were written to.
std::pair<const void*, std::uint32_t> seen_in(const at::Tensor& gradient) {
  const std::uint32_t version = gradient.is_inference() ? 0 : static_cast<std::uint32_t>(gradient._version());
  return {gradient.unsafeGetTensorImpl(), version};
}

}  // namespace

Contributions::Contributions(const TrainedParameters& parameters, ProcessGroup group, Weighting weighting,
                             std::uint64_t wrapper)
    : parameters_(parameters),
      group_(std::move(group)),
      weighting_(weighting),
      wrapper_(wrapper),
      since_(parameters.size()),
      used_(parameters.size()),
      used_before_(parameters.size()),
      seen_(parameters.size()),
      was_zero_(parameters.size()),
      is_mixed_(parameters.size()),
      nonzeros_before_(parameters.size()),
      averages_(parameters.size()),
      own_(parameters.size()),
      none_(parameters.size()) {
  const std::lock_guard lock(all_contributions().mutex);
  all_contributions().all.push_back(this);
}

Contributions::~Contributions() {
  const std::lock_guard lock(all_contributions().mutex);
  std::erase(all_contributions().all, this);
}

// REQUIRES: the mutex is held.
Contributions* Contributions::weighting_here(std::uint64_t wrapper) {
  const int backward = current_backward();
  for (Contributions* each : all_contributions().all) {
    const bool is_meant = each->weighting_ == Weighting::samples && (wrapper == 0 || wrapper == each->wrapper_);
    const bool runs_here = each->backward_ == backward || each->thread_.load() == std::this_thread::get_id();
    if (is_meant && runs_here) return each;
  }
  return nullptr;
}

double factor_of_current_backward(std::uint64_t wrapper, bool divides) {
  const std::lock_guard lock(all_contributions().mutex);
  Contributions* one = Contributions::weighting_here(wrapper);
  if (one == nullptr) return 1;
  if (divides) one->divides_ = true;
  return one->factor();
}

void Contributions::agree_on_unit(double weight, bool synchronises) {
  if (weighting_ != Weighting::samples || has_agreed_) return;
  if (!unit_) unit_ = 1;  // the same on all ranks, since a layer may add up their results
  if (!synchronises) return;
  const at::Tensor unit = at::tensor({weight}, at::kDouble);
  group_.broadcast(unit, 0, {.name = "DDP unit of weight"});
  const double told = believed(group_, [&] {
    return checked_weight(unit.item<double>(), "weight", {"first forward", 0});
  });
  unit_ = told == 0 ? 1 : told;
  has_agreed_ = true;
  rescale(1 / *unit_);
}

// Rescales the results in the first unit.
void Contributions::rescale(double factor) {
  if (factor == 1) return;
  look_for_zeros();  // before they are written to
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (!used_[i] || !gradient.defined()) continue;
    gradient.mul_(factor);
    seen_[i] = seen_in(gradient);
  }
  for (Counted& one : counted_) one.weight *= factor;
}

void Contributions::begin_backward(const ForwardNote& note, std::span<const ForwardGraphs::Found> forwards) {
  look_for_zeros();
  // Forwards in evaluation have not, since ranks may make them alone.
  if (note.synchronise) agree_on_unit(note.weight, true);
  note_ = note;
  backward_ = current_backward();
  thread_ = std::this_thread::get_id();
  divides_ = false;
  used_before_ = used_;
  is_weighted() ? put_averages_aside() : put_averages_back();
  note_mixture();
  if (note_.joined) return put_own_aside();
  for (const ForwardGraphs::Found& found : forwards) {
    if (found.joined) continue;
    const auto known = std::ranges::find(counted_, found.id, &Counted::forward);
    if (known == counted_.end()) {
      const double weight = weighting_ == Weighting::samples ? found.weight / unit_.value() : 1;
      counted_.push_back({.forward = found.id, .weight = weight, .last = backwards_, .before = -1});
    } else {
      known->before = std::exchange(known->last, backwards_);
    }
  }
  ++backwards_;
}

void Contributions::look_for_zeros() {
  if (backwards_ == 0) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) used_[i] = used_[i] && !was_zeroed(i);
    return;
  }
  bool has_zeroed = false, has_scaled = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!used_[i]) continue;
    if (was_zeroed(i)) {
      has_zeroed = true;
      note_zeroed(i);
      continue;
    }
    if (!was_zero_[i] && seen_in(parameters_[i].tensor.grad()) != seen_[i]) has_scaled = true;
  }
  // A gradient that was zero before it was written to has been zeroed, too, unless others have been scaled.
  for (std::size_t i = 0; i < parameters_.size() && !has_scaled; ++i) {
    if (!used_[i] || !was_zero_[i] || seen_in(parameters_[i].tensor.grad()) == seen_[i]) continue;
    has_zeroed = true;
    note_zeroed(i);
  }
  // The gradients of parameters that have none may have been dropped with the others.
  if (!has_zeroed || std::ranges::find(used_, true) != used_.end()) return;
  forget();
}

void Contributions::note_zeroed(std::size_t parameter) {
  used_[parameter] = false;
  averages_[parameter].reset();
  since_[parameter] = backwards_;
  is_uniform_ = false;
}

// The gradient of a contribution must still exist. A zero that it left itself shows nothing. With weights all gradients
// are checked, since not every way to write to a tensor is counted.
bool Contributions::was_zeroed(std::size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  if (!gradient.defined()) return true;
  if (backwards_ == 0 || was_zero_[parameter]) return false;
  const bool may_be = seen_in(gradient) != seen_[parameter] || weighting_ == Weighting::samples;
  return may_be && is_zero(gradient);
}

void Contributions::check_is_weighted(std::size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  if (is_zero(gradient)) return;
  throw_on_all_ranks(group_, unweighted_gradient_error(group_.rank(), parameters_[parameter].name));
}

// Also those that were put back in the meantime, since no backward had added to them.
void Contributions::put_averages_aside() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined() || (backwards_ != 0 && used_[i])) continue;
    if (has_local_gradients_) check_is_weighted(i);
    averages_[i] = std::exchange(gradient, at::Tensor());
  }
}

// With weights, earlier averages are put aside. That fails once a backward without weights has added to them.
void Contributions::note_mixture() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_weighted()) {
      if (used_[i] && is_mixed(i)) {
        throw_on_all_ranks(group_, mixed_gradient_error(group_.rank(), parameters_[i].name));
      }
    } else if (!note_.synchronise && !used_[i]) {
      const at::Tensor& gradient = parameters_[i].tensor.grad();
      const bool asks_device = gradient.defined() && !gradient.is_cpu();
      nonzeros_before_[i] = asks_device ? nonzeros_in(gradient) : at::Tensor();
      is_mixed_[i] = gradient.defined() && !asks_device && !is_zero(gradient);
    }
  }
}

bool Contributions::is_mixed(std::size_t parameter) const {
  const at::Tensor& nonzeros = nonzeros_before_[parameter];
  return is_mixed_[parameter] || (nonzeros.defined() && nonzeros.item<std::int64_t>() != 0);
}

void Contributions::put_averages_back() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!averages_[i].defined()) continue;
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    const at::Tensor before = std::exchange(averages_[i], at::Tensor());
    if (gradient.defined()) {
      before.add_(gradient);
      note_use(gradient);
    }
    gradient = before;
  }
}

void Contributions::put_own_aside() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    own_[i] = std::exchange(parameters_[i].tensor.mutable_grad(), at::Tensor());
  }
}

// averaged: the parameters whose gradients hold averages now; null: all.
void Contributions::put_own_back(const std::vector<bool>* averaged) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor own = std::exchange(own_[i], at::Tensor());
    if (averaged != nullptr && !(*averaged)[i]) parameters_[i].tensor.mutable_grad() = own;
  }
}

void Contributions::note_local_gradient(std::size_t parameter, bool is_defined) {
  has_local_gradients_ = true;
  if (is_defined) used_[parameter] = true;  // accumulated, as under no_sync()
}

double Contributions::weight_since(std::int64_t backward) const {
  double sum = 0;
  for (const Counted& one : counted_) {
    if (one.last < backward) continue;
    if (weighting_ != Weighting::samples) return 1;  // a rank that takes part
    sum += one.weight;
  }
  return sum;
}

void Contributions::end_local() {
  thread_ = std::thread::id();
  if (note_.joined) put_own_back(&none_);
  put_back_where_nothing_came();
}

void Contributions::put_back_where_nothing_came() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined() && averages_[i].defined()) gradient = std::exchange(averages_[i], at::Tensor());
    if (!gradient.defined()) continue;
    seen_[i] = seen_in(gradient);
    was_zero_[i] = weighting_ == Weighting::samples && used_[i] && is_zero(gradient);
  }
}

void Contributions::end_averaged(const std::vector<bool>* used) {
  thread_ = std::thread::id();
  if (note_.joined) put_own_back(used);
  put_averages_back();
  forget();
}

void Contributions::forget() {
  backwards_ = 0;
  counted_.clear();
  if (!std::exchange(is_uniform_, true)) std::ranges::fill(since_, 0);
  std::fill(used_.begin(), used_.end(), false);
  std::fill(is_mixed_.begin(), is_mixed_.end(), false);
  std::ranges::fill(nonzeros_before_, at::Tensor());
  has_local_gradients_ = false;
  for (at::Tensor& average : averages_) average.reset();
}

void Contributions::roll_back() {
  thread_ = std::thread::id();
  if (note_.joined) {
    put_own_back(&none_);
  } else {
    --backwards_;
    std::erase_if(counted_, [&](Counted& one) {
      if (one.last == backwards_) one.last = std::exchange(one.before, -1);
      return one.last < 0;
    });
  }
  if (backwards_ == 0) put_averages_back();
  put_back_where_nothing_came();
  used_ = used_before_;
}

}  // namespace lockstep::internal
