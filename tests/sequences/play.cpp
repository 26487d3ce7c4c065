#include "tests/sequences/play.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"
#include "lockstep/train/optim/clip_gradients.h"
#include "lockstep/train/optim/zero_redundancy_optimizer.h"
#include "tests/graphs/functions.h"
#include "tests/sequences/net.h"

namespace lockstep::sequences {
namespace {

using Wrapper = DistributedDataParallel<std::shared_ptr<Net>>;

struct Trained {
  std::shared_ptr<Net> net;
  std::unique_ptr<Wrapper> ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<at::Tensor> aside;
};

struct Output {
  const Event* event;
  at::Tensor input, output;
  double scale = 1;
};

double size_of(const Values& values) {
  double size = 0;
  for (const double value : values) size = std::max(size, std::isfinite(value) ? std::abs(value) : 0);
  return size;
}

// Empty if they are the same but for rounding. size: of what they were computed from, if that is larger.
std::string difference(const Values& found, const Values& expected, double tolerance, double size) {
  if (found.size() != expected.size()) return "has another size";
  size = std::max(size, size_of(expected));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool same = found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]));
    if (!same && !(std::abs(found[i] - expected[i]) <= tolerance * (size + 0.01))) {
      return fmt::format("[{}] is {}, must be {}", i, found[i], expected[i]);
    }
  }
  return {};
}

Values values_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.detach().to(at::kDouble).contiguous();
  const double* data = wide.const_data_ptr<double>();
  return {data, data + wide.numel()};
}

class Player {
 public:
  Player(const Sequence& sequence, const std::vector<Occurrence>& expected, const ProcessGroup& group)
      : sequence_(sequence), setting_(sequence.setting), expected_(expected), group_(group) {
    for (int i = 0; i < setting_.models; ++i)
      wrap(models_[i], own_seed(sequence.seed + static_cast<std::uint64_t>(i) * 17));
  }

  void play(const Events& events) {
    for (const Event& event : events) {
      const Occurrence& occurrence = expected_.at(next_++);
      if (!occurrence.happens) continue;
      if (event.kind == Kind::join) {
        play_join(event);
        continue;
      }
      try {
        happen(event, occurrence);
        compare(occurrence);
      } catch (const std::exception& error) {
        throw Difference(
            fmt::format("rank {}, event {} ({}): {}", group_.rank(), next_ - 1, to_text(event), error.what()));
      }
    }
  }

 private:
  // Rank 0's values are what counts.
  std::uint64_t own_seed(std::uint64_t seed) const { return group_.rank() == 0 ? seed : seed + 1000; }

  void wrap(Trained& model, std::uint64_t seed, const Net* like = nullptr) const {
    model.net = std::make_shared<Net>(setting_, seed);
    if (like != nullptr && like->late.defined()) model.net->add_parameter(seed);
    if (like != nullptr && like->late_head != nullptr) model.net->add_module(seed);
    model.ddp = std::make_unique<Wrapper>(model.net, group_, options_of(setting_));
    model.net->set_mode(setting_, true);
    if (setting_.hook == Hook::all_reduce) model.ddp->register_comm_hook(all_reduce_hook());
    if (setting_.hook == Hook::fp16) model.ddp->register_comm_hook(fp16_compress_hook());
    if (setting_.hook == Hook::power_sgd) {
      const PowerSgd hook({.matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .min_compression_rate = 0.1});
      model.ddp->register_comm_hook(hook.hook());
    }
    make_optimizer(model);
  }

  void make_optimizer(Trained& model) const {
    const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
    if (setting_.shares_optimizer) {
      model.optimizer =
          std::make_unique<ZeroRedundancyOptimizer<torch::optim::SGD>>(model.ddp->parameters(), group_, options);
    } else {
      model.optimizer = std::make_unique<torch::optim::SGD>(model.ddp->parameters(), options);
    }
  }

  void play_join(const Event& event) {
    slots_ = {};
    std::vector<int> batches(static_cast<std::size_t>(event.lengths[group_.rank()]));
    std::iota(batches.begin(), batches.end(), 0);
    join(group_, batches,
         [&](int batch) {
           iteration_ = batch;
           play(event.body);
           if (!setting_.join_carries) slots_ = {};
         },
         {.divide_by_initial_world_size = !event.divides_by_active});
    slots_ = {};
    iteration_ = 0;
  }

  Place place_of(const Event& event) const { return {sequence_, event, iteration_, group_.rank()}; }

  void happen(const Event& event, const Occurrence& occurrence) {
    const bool mine = (occurrence.ranks >> static_cast<unsigned>(group_.rank()) & 1U) != 0;
    Trained& model = models_[event.model];
    switch (event.kind) {
      case Kind::forward: return mine ? forward(event) : void();
      case Kind::backward: return mine ? backward(event, occurrence.throws) : void();
      case Kind::input_gradient: return mine ? input_gradient(event) : void();
      case Kind::drop: return mine ? slots_[static_cast<std::size_t>(event.slot)].reset() : void();
      case Kind::zero: return mine ? zero(event, model) : void();
      case Kind::step:
        drop_slots_of(event.model);
        model.optimizer->step();
        return;
      case Kind::clip: clip_grad_norm(model.ddp->parameters(), 0.5); return;
      case Kind::evaluate: return mine ? evaluate(event, model) : void();
      case Kind::bare: return mine ? bare(event, model) : void();
      case Kind::freeze:
        drop_slots_of(event.model);
        model.net->freezable(event.choice).requires_grad_(false);
        return;
      case Kind::thaw:
        drop_slots_of(event.model);
        for (const at::Tensor& parameter : model.net->parameters()) parameter.requires_grad_(true);
        return;
      case Kind::add_parameter:
      case Kind::add_module:
      case Kind::replace_module: return grow(event, model);
      case Kind::set_aside:
        model.aside.clear();
        for (const at::Tensor& parameter : model.net->parameters()) {
          model.aside.push_back(std::exchange(parameter.mutable_grad(), {}));
        }
        return;
      case Kind::put_back: return put_back(event, model);
      case Kind::reload: return reload(event, model);
      case Kind::sharded: return sharded(event, model);
      case Kind::join: return;
    }
  }

  void forward(const Event& event) {
    const Place place = place_of(event);
    const at::Tensor input = input_of(place).requires_grad_(event.choice % 2 == 1);
    at::Tensor value = input;
    Output made{.event = &event, .input = input, .output = {}, .scale = scale_of(place)};
    const Call call{.parts = parts_of(place), .throws = event.throws};
    try {
      bool is_first = true;
      for (int i = 0; i < setting_.models; ++i) {
        if (!event.through[i]) continue;
        // Only one of two models throws.
        value = forward(models_[i], value, event, event.local[i], is_first ? call : Call{.parts = call.parts});
        is_first = false;
      }
    } catch (const Thrown&) {
      if (event.throws == Throws::in_forward) return;
      throw;
    }
    if (event.throws == Throws::in_forward) throw Difference("the exception of a forward got lost");
    made.output = value;
    slots_[static_cast<std::size_t>(event.slot)] = std::move(made);
  }

  at::Tensor forward(const Trained& model, const at::Tensor& x, const Event& event, bool local,
                     const Call& call) const {
    std::shared_ptr<NoSync> guard;
    if (local) guard = std::shared_ptr<NoSync>(new NoSync(model.ddp->no_sync()));
    const auto weight = weight_of(place_of(event));
    if (!weight) return call_of(*model.ddp, x, call);
    model.ddp->set_weight(weight);
    try {
      const at::Tensor output = call_of(*model.ddp, x, call);
      model.ddp->set_weight({});
      return output;
    } catch (...) {
      model.ddp->set_weight({});
      throw;
    }
  }
  at::Tensor call_of(Wrapper& ddp, const at::Tensor& x, const Call& call) const {
    return setting_.takes_list ? ddp(std::vector<at::Tensor>{x}, call) : ddp(x, call);
  }

  void backward(const Event& event, bool must_fail) {
    at::Tensor loss;
    bool throws = false;
    for (const auto& slot : slots_) {
      if ((event.slots >> static_cast<unsigned>(&slot - slots_.data()) & 1U) == 0 || !slot) continue;
      const at::Tensor one = loss_of(slot->output, event.loss, slot->scale);
      loss = loss.defined() ? loss + one : one;
      throws = throws || slot->event->throws != Throws::never;
    }
    bool has_failed = false;
    try {
      torch::autograd::backward({loss}, {}, event.retains && !throws);
    } catch (const testing::Blown&) {
      if (!throws) throw;
      has_failed = true;
    } catch (const Error& error) {
      if (!must_fail || std::string(error.what()).find("Inf") == std::string::npos) throw;
      has_failed = true;
    }
    if (has_failed != (throws || must_fail)) throw Difference("backward() did not throw");
    if (event.retains && !throws) return;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if ((event.slots >> slot & 1U) != 0) slots_[slot].reset();
    }
  }

  void input_gradient(const Event& event) {
    const auto& slot = slots_[static_cast<std::size_t>(event.slot)];
    if (!slot->input.requires_grad()) return;
    torch::autograd::grad({loss_of(slot->output, event.loss, 1)}, {slot->input}, {}, true);
  }

  static void zero(const Event& event, Trained& model) {
    switch (event.way) {
      case Way::wrapper: model.ddp->zero_grad(); return;
      case Way::module_none: model.net->zero_grad(true); return;
      case Way::module_zeros: model.net->zero_grad(false); return;
      case Way::optimizer_none: model.optimizer->zero_grad(true); return;
      case Way::optimizer_zeros: model.optimizer->zero_grad(false); return;
      case Way::some_none:
      case Way::some_zeros: break;
    }
    const at::NoGradGuard no_grad;
    unsigned number = 0;
    for (const at::Tensor& parameter : model.net->parameters()) {
      const bool is_meant = number < 12 && (event.parts >> number & 1U) != 0;
      ++number;
      if (!is_meant || !parameter.grad().defined()) continue;
      if (event.way == Way::some_none) {
        parameter.mutable_grad().reset();
      } else {
        parameter.mutable_grad().zero_();
      }
    }
  }

  void evaluate(const Event& event, const Trained& model) const {
    const bool trains = event.choice == 2;
    const at::AutoGradMode mode(event.choice == 1);
    std::shared_ptr<NoSync> guard;
    if (event.choice == 3) guard = std::shared_ptr<NoSync>(new NoSync(model.ddp->no_sync()));
    if (!trains) model.net->eval();
    const int times = trains && setting_.norm ? 1 : 1 + (event.id + group_.rank()) % 3;
    for (int i = 0; i < times; ++i) call_of(*model.ddp, input_of(place_of(event)), Call{});
    model.net->set_mode(setting_, true);
  }

  void sharded(const Event& event, const Trained& model) const {
    model.ddp->for_each_shard([&](const Shard& shard) {
      const bool counts = (event.ranks >> static_cast<unsigned>(shard.index) & 1U) != 0;
      double sum = 0;
      for (int i = 0; i <= event.choice; ++i) {
        const Place place{sequence_, event, i, shard.index};
        const Call call{.parts = parts_of(place), .throws = counts ? Throws::never : event.throws};
        const at::Tensor loss = loss_of((*model.ddp)(input_of(place), call), event.loss, 1);
        sum += loss.item<double>();
        if (!counts && event.throws == Throws::never) continue;
        try {
          loss.backward();
        } catch (const testing::Blown&) {
          if (counts) throw;
        }
      }
      return sum;
    });
  }

  void bare(const Event& event, const Trained& model) const {
    const Place place = place_of(event);
    loss_of(model.net->forward(input_of(place), Call{.parts = parts_of(place)}), event.loss, 1).backward();
  }

  void grow(const Event& event, Trained& model) {
    drop_slots_of(event.model);
    const std::uint64_t seed = own_seed(seed_of({sequence_, event, 0, 0}));
    if (event.kind == Kind::add_parameter) model.net->add_parameter(seed);
    if (event.kind == Kind::add_module) model.net->add_module(seed);
    if (event.kind == Kind::replace_module) model.net->replace_head(seed);
    model.net->set_mode(setting_, true);
    make_optimizer(model);
  }

  static void put_back(const Event& event, Trained& model) {
    const at::NoGradGuard no_grad;
    std::size_t next = 0;
    for (const at::Tensor& parameter : model.net->parameters()) {
      const at::Tensor saved = model.aside[next++];
      at::Tensor& gradient = parameter.mutable_grad();
      if (event.choice == 0 || !gradient.defined()) {
        if (event.choice == 0 || saved.defined()) gradient = saved;
      } else if (saved.defined()) {
        gradient.add_(saved);
      }
    }
    model.aside.clear();
  }

  // What rank 0 has saved, all ranks load.
  void reload(const Event& event, Trained& model) {
    drop_slots_of(event.model);
    NamedTensors state;
    for (const auto& [name, tensor] : model.ddp->state_dict()) {
      state.emplace_back(name, tensor.detach().clone());
      group_.broadcast(state.back().second, 0);
    }
    std::stringstream saved;
    torch::save(*model.optimizer, saved);
    Trained other;
    wrap(other, own_seed(seed_of({sequence_, event, 0, 0})), model.net.get());
    other.ddp->load_state_dict(state);
    torch::load(*other.optimizer, saved);
    model = std::move(other);
  }

  void drop_slots_of(int model) {
    for (auto& slot : slots_) {
      if (slot && slot->event->through[model]) slot.reset();
    }
  }

  void compare(const Occurrence& occurrence) const {
    for (int i = 0; i < setting_.models; ++i) compare(models_[i], occurrence.models[i], "GD"[i]);
  }

  void compare(const Trained& model, const Expected& expected, char name) const {
    if (!expected.is_trained) return;
    const double tolerance = tolerance_of(setting_);
    const auto check = [&](const std::string& what, const at::Tensor& found, const Values& values, double size = 0) {
      const std::string text = difference(values_of(found), values, tolerance, size);
      if (!text.empty()) throw Difference(fmt::format("{}: {}{}", name, what, text));
    };
    const auto parameters = model.net->named_parameters();
    double of_gradients = 0;  // where the terms of one cancel each other, others show how large they were
    for (const auto& values : expected.gradients) of_gradients = std::max(of_gradients, values ? size_of(*values) : 0);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].value().grad();
      const auto& values = expected.gradients[i];
      // A rank that has joined leaves none where the others have set theirs to zero.
      const auto is_zero = [](double value) { return value == 0; };
      const bool may_be_missing = values && !gradient.defined() && std::ranges::all_of(*values, is_zero);
      if (expected.is_settled && !may_be_missing) {
        if (gradient.defined() != values.has_value()) {
          throw Difference(fmt::format("{}: the gradient of {} is {}", name, expected.names[i],
                                       gradient.defined() ? "there, and must not be" : "missing"));
        }
        if (values) check("the gradient of " + expected.names[i], gradient, *values, of_gradients);
      }
      check(expected.names[i], parameters[i].value(), expected.parameters[i]);
    }
    const auto buffers = model.net->named_buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      check(buffers[i].key(), buffers[i].value(), expected.buffers[static_cast<std::size_t>(group_.rank())][i]);
    }
  }

  const Sequence& sequence_;
  const Setting& setting_;
  const std::vector<Occurrence>& expected_;
  const ProcessGroup& group_;
  std::size_t next_ = 0;
  Trained models_[kModels];
  std::array<std::optional<Output>, kSlots> slots_;
  int iteration_ = 0;
};

}  // namespace

void play(const Sequence& sequence, const std::vector<Occurrence>& expected, const ProcessGroup& group) {
  Player(sequence, expected, group).play(sequence.events);
}

}  // namespace lockstep::sequences
