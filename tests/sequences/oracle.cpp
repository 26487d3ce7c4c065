#include "tests/sequences/oracle.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tests/sequences/contributions.h"
#include "tests/sequences/net.h"

namespace lockstep::sequences {
namespace {

// A forward of one rank.
struct Made {
  const Event* event;
  at::Tensor output;
  int forwards[kModels] = {-1, -1};
  bool joined = false;
  bool divides_by_active = false;
  double scale = 1;
};

class Oracle {
 public:
  explicit Oracle(const Sequence& sequence) : sequence_(sequence), setting_(sequence.setting) {
    for (int i = 0; i < setting_.models; ++i) {
      Model& model = models_[i];
      model.net = std::make_shared<Net>(setting_, sequence.seed + static_cast<std::uint64_t>(i) * 17);
      model.net->set_mode(setting_, true);
      for (int rank = 0; rank < setting_.ranks; ++rank) model.buffers.push_back(copies_of(model.net->buffers()));
      list_parameters(model);
    }
  }

  std::vector<Occurrence> run() {
    play(sequence_.events);
    return std::move(occurrences_);
  }

 private:
  // ---- walking ----

  void play(const Events& events) {
    for (const Event& event : events) {
      const std::size_t at = occurrences_.size();
      occurrences_.push_back({.event = &event, .ranks = ranks_of(event)});
      occurrences_[at].happens = is_due(event) && model_is_there(event) && happens(event, occurrences_[at]);
      if (occurrences_[at].happens) note(occurrences_[at]);
      if (event.kind == Kind::join && occurrences_[at].happens) play_join(event);
    }
  }

  void play_join(const Event& event) {
    drop_all_slots();
    const int most = *std::max_element(event.lengths, event.lengths + setting_.ranks);
    is_in_join_ = true;
    divides_by_active_ = event.divides_by_active;
    has_divided_ = has_divided_ || divides_by_active_;
    for (int i = 0; i < most; ++i) {
      for (int rank = 0; rank < setting_.ranks; ++rank) {
        joined_[rank] = i >= event.lengths[rank];
        iteration_[rank] = std::min(i, event.lengths[rank] - 1);
      }
      play(event.body);
      if (!setting_.join_carries) drop_all_slots();
      ++iterations_;
    }
    drop_all_slots();
    is_in_join_ = divides_by_active_ = false;
    std::fill(std::begin(joined_), std::end(joined_), false);
    std::fill(std::begin(iteration_), std::end(iteration_), 0);
  }

  unsigned everybody() const { return (1U << static_cast<unsigned>(setting_.ranks)) - 1; }
  unsigned ranks_of(const Event& event) const {
    return event.kind == Kind::forward && is_synchronised(event) ? everybody() : event.ranks & everybody();
  }
  static bool has(unsigned ranks, int rank) { return (ranks >> static_cast<unsigned>(rank) & 1U) != 0; }
  bool is_due(const Event& event) const {
    return event.only == Only::always || (event.only == Only::odd) == (iterations_ % 2 == 1);
  }
  bool model_is_there(const Event& event) const {
    return event.model < setting_.models &&
           (event.kind != Kind::forward || !event.through[1] || setting_.models == 2) &&
           (event.through[0] || event.through[1]);
  }

  void note(Occurrence& occurrence) const {
    for (int i = 0; i < setting_.models; ++i) {
      const Model& model = models_[i];
      Expected& expected = occurrence.models[i];
      expected.is_trained = !model.is_fresh;
      expected.is_settled = is_settled(model);
      for (const Parameter& parameter : model.parameters) {
        expected.names.push_back(parameter.name);
        expected.parameters.push_back(values_of({parameter.value})[0]);
        expected.gradients.emplace_back();
        if (parameter.base.defined()) expected.gradients.back() = values_of({parameter.base})[0];
      }
      for (const auto& buffers : model.buffers) expected.buffers.push_back(values_of(buffers));
    }
  }

  // ---- what may happen, and what it does ----

  bool happens(const Event& event, Occurrence& occurrence) {
    const unsigned ranks = occurrence.ranks;
    Model& model = models_[event.model];
    switch (event.kind) {
      case Kind::forward: return forward(event, ranks);
      case Kind::backward: return backward(event, occurrence);
      case Kind::input_gradient: return input_gradient(event, occurrence);
      case Kind::drop: return drop(event, ranks);
      case Kind::zero: return zero(event, ranks);
      case Kind::step: return step(model, event.model);
      case Kind::clip: return clip(model);
      case Kind::evaluate: return evaluate(model, occurrence);
      case Kind::bare: return bare(event, ranks);
      case Kind::freeze:
      case Kind::thaw: return freeze(event);
      case Kind::add_parameter:
      case Kind::add_module:
      case Kind::replace_module: return grow(event);
      case Kind::set_aside:
      case Kind::put_back: return set_aside(event);
      case Kind::reload: return reload(event);
      case Kind::sharded: return sharded(event);
      case Kind::join:
        if (event.divides_by_active && !setting_.samples && std::ranges::any_of(models_, is_mixed)) return false;
        return !is_in_join_ && !event.body.empty();
    }
    return false;
  }

  bool forward(const Event& event, unsigned ranks) {
    if (setting_.shards != 0) return false;
    for (int i = 0; i < setting_.models; ++i) {
      if (!event.through[i]) continue;
      if (event.local[i] && models_[i].is_fresh) return false;
      if (ranks != everybody() && !models_[i].has_begun && !setting_.first_alone) return false;
    }
    // Some ranks alone must not drop a forward whose backward synchronises.
    for (const auto& made : slots_[event.slot]) {
      if (made && ranks != everybody() && is_synchronised(*made->event)) return false;
    }
    for (int i = 0; i < setting_.models; ++i) {
      if (!event.through[i]) continue;
      models_[i].has_begun = models_[i].has_begun || ranks == everybody();
      if (!event.local[i]) {
        models_[i].is_fresh = false;
        models_[i].has_synchronised = true;
        share_buffers(models_[i]);
      }
      if (event.throws != Throws::in_forward) continue;
      models_[i].have_changed |= ranks;  // nobody knows how far it has come
      return true;                       // the second model's does not begin
    }
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      if (has(ranks, rank)) slots_[event.slot][rank] = forward_of(event, rank);
    }
    return true;
  }

  Made forward_of(const Event& event, int rank) {
    const Place place{sequence_, event, iteration_[rank], rank};
    Made made{.event = &event,
              .output = input_of(place),
              .joined = joined_[rank],
              .divides_by_active = divides_by_active_,
              .scale = scale_of(place)};
    const double weight = weight_of(place).value_or(static_cast<double>(made.output.size(0)));
    for (int i = 0; i < setting_.models; ++i) {
      if (!event.through[i]) continue;
      made.forwards[i] = static_cast<int>(weights_.size());
      weights_.push_back(weight);
      made.output = compute(models_[i], rank, made.output, parts_of(place));
    }
    return made;
  }

  at::Tensor compute(Model& model, int rank, const at::Tensor& x, unsigned parts) {
    put(model.buffers[static_cast<std::size_t>(rank)], model.net->buffers());
    const at::Tensor output = model.net->forward(x, Call{.parts = parts});
    put(model.net->buffers(), model.buffers[static_cast<std::size_t>(rank)]);
    model.has_joined[rank] = joined_[rank];
    model.have_changed |= 1U << static_cast<unsigned>(rank);
    return output;
  }

  // All ranks have the buffers of one that still has batches, or had them in the last forward.
  void share_buffers(Model& model) const {
    int from = 0;
    while (from < setting_.ranks - 1 && (joined_[from] || model.has_joined[from])) ++from;
    if (joined_[from] || model.has_joined[from]) from = 0;
    for (auto& buffers : model.buffers) put(model.buffers[static_cast<std::size_t>(from)], buffers);
    std::fill(std::begin(model.has_joined), std::end(model.has_joined), false);
    model.have_changed = 0;
  }

  // Of one rank, those slots of a backward that are there.
  std::vector<Made*> slots_of(const Event& event, int rank) {
    std::vector<Made*> made;
    for (int slot = 0; slot < kSlots; ++slot) {
      if ((event.slots >> static_cast<unsigned>(slot) & 1U) != 0 && slots_[slot][rank]) {
        made.push_back(&*slots_[slot][rank]);
      }
    }
    return made;
  }

  bool backward(const Event& event, Occurrence& occurrence) {
    bool is_averaged[kModels] = {}, divides = false, is_local_throw = false, throws = false;
    unsigned ranks = 0;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      for (const Made* made : slots_of(event, rank)) {
        if (has(occurrence.ranks, rank)) ranks |= 1U << static_cast<unsigned>(rank);
        throws = throws || made->event->throws != Throws::never;
        if (!is_synchronised(*made->event)) is_local_throw = is_local_throw || made->event->throws != Throws::never;
        for (int i = 0; i < setting_.models; ++i) {
          is_averaged[i] = is_averaged[i] || (made->event->through[i] && !made->event->local[i]);
        }
        if (is_synchronised(*made->event)) divides = made->divides_by_active;
      }
    }
    const bool synchronises = is_averaged[0] || is_averaged[1];
    if (synchronises) ranks = everybody();
    if (ranks == 0 || (synchronises && is_local_throw)) return false;
    occurrence.ranks = ranks;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      if (!has(ranks, rank)) continue;
      const auto made = slots_of(event, rank);
      const bool one_throws =
          std::any_of(made.begin(), made.end(), [](const Made* one) { return one->event->throws != Throws::never; });
      if (!one_throws) contribute(event, rank, made);
      if (event.retains && !one_throws) continue;
      for (int slot = 0; slot < kSlots; ++slot) {
        if ((event.slots >> static_cast<unsigned>(slot) & 1U) != 0) slots_[slot][rank].reset();
      }
    }
    if (throws) return true;
    for (int i = 0; i < setting_.models; ++i) {
      if (is_averaged[i] && !average(models_[i], divides)) occurrence.throws = setting_.non_finite == NonFinite::fail;
    }
    return true;
  }

  // Adds what a rank's backward gives to the lists.
  void contribute(const Event& event, int rank, const std::vector<Made*>& through) {
    std::vector<at::Tensor> inputs;
    std::vector<Parameter*> to;
    std::vector<std::vector<int>> forwards;
    at::Tensor loss;
    // Beside a batch of the rank's own, one that it repeats counts for nothing.
    const bool joined = std::all_of(through.begin(), through.end(), [](const Made* made) { return made->joined; });
    const auto counts = [&](const Made* made) { return joined || !made->joined; };
    for (const Made* made : through) {
      if (!counts(made)) continue;
      const at::Tensor one = loss_of(made->output, event.loss, made->scale);
      loss = loss.defined() ? loss + one : one;
    }
    for (int i = 0; i < setting_.models; ++i) {
      std::vector<int> of_model;
      for (const Made* made : through) {
        if (counts(made) && made->forwards[i] >= 0) of_model.push_back(made->forwards[i]);
      }
      if (of_model.empty()) continue;
      for (Parameter& parameter : models_[i].parameters) {
        if (!parameter.value.requires_grad()) continue;
        inputs.push_back(parameter.value);
        to.push_back(&parameter);
        forwards.push_back(of_model);
      }
    }
    const auto gradients = torch::autograd::grad({loss}, inputs, {}, event.retains, false, true);
    for (std::size_t i = 0; i < to.size(); ++i) add(*to[i], rank, gradients[i], forwards[i], joined);
  }

  // Whether all is finite; if it is not, the gradients of the model are reset.
  bool average(Model& model, bool divides_by_active) {
    bool is_finite = true;
    for (Parameter& parameter : model.parameters) {
      const at::Tensor mean = mean_of(parameter, setting_, weights_, divides_by_active);
      if (mean.defined()) parameter.base = parameter.base.defined() ? parameter.base + mean : mean;
      if (mean.defined() && setting_.non_finite != NonFinite::ignore) is_finite = is_finite && fits(parameter.base);
      for (int rank = 0; rank < setting_.ranks; ++rank) forget(parameter, rank);
      for (bool& was_added_to : parameter.was_added_to) was_added_to = false;
    }
    if (is_finite) return true;
    for (Parameter& parameter : model.parameters) parameter.base = at::Tensor();
    return false;
  }

  // Whether what is sent holds a gradient. Where rounding decides, nothing can be said.
  bool fits(const at::Tensor& gradient) const {
    const double size = gradient.abs().max().item<double>();
    if (!std::isfinite(size)) return false;
    const bool is_half = setting_.reduces_half || setting_.hook == Hook::fp16;
    if (!is_half && !setting_.reduces_float) return true;
    if (size > (is_half ? 1e3 : 1e30) && size < (is_half ? 1e6 : 1e42)) throw Unclear("close to what a type can hold");
    return size < (is_half ? 1e3 : 1e30);
  }

  bool input_gradient(const Event& event, Occurrence& occurrence) {
    unsigned ranks = 0;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      auto& made = slots_[event.slot][rank];
      if (!has(occurrence.ranks, rank) || !made || made->event->throws != Throws::never) continue;
      ranks |= 1U << static_cast<unsigned>(rank);
    }
    occurrence.ranks = ranks;
    return ranks != 0;
  }

  bool drop(const Event& event, unsigned ranks) {
    bool is_there = false;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      auto& made = slots_[event.slot][rank];
      if (!made) continue;
      if (!has(ranks, rank) && is_synchronised(*made->event)) return false;  // the others would make its backward
      is_there = is_there || has(ranks, rank);
    }
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      if (has(ranks, rank)) slots_[event.slot][rank].reset();
    }
    return is_there;
  }

  static bool zeroes(const Event& event, std::size_t parameter) {
    const bool some = event.way == Way::some_none || event.way == Way::some_zeros;
    return !some || (parameter < 12 && (event.parts >> parameter & 1U) != 0);
  }

  // What .grad is afterwards must be the same on all ranks.
  bool zero(const Event& event, unsigned ranks) {
    Model& model = models_[event.model];
    const bool to_zeros =
        event.way == Way::module_zeros || event.way == Way::optimizer_zeros || event.way == Way::some_zeros;
    const auto is_defined = [](const Parameter& one, int rank) { return one.base.defined() || one.is_dirty[rank]; };
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      if (!zeroes(event, i)) continue;
      const Parameter& one = model.parameters[i];
      if (ranks != everybody() && one.base.defined() &&
          (!to_zeros || one.base.count_nonzero().item<std::int64_t>() != 0)) {
        return false;
      }
      if (!to_zeros) continue;
      for (int rank = 0; rank < setting_.ranks; ++rank) {
        const bool differs = ranks == everybody() ? is_defined(one, rank) != is_defined(one, 0)
                                                  : has(ranks, rank) && one.is_dirty[rank] && !one.base.defined();
        if (differs) return false;
      }
    }
    std::array<bool, kMostRanks> had_contributed;
    for (int rank = 0; rank < kMostRanks; ++rank)
      had_contributed[static_cast<std::size_t>(rank)] = has_contributed(model, rank);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      if (!zeroes(event, i)) continue;
      Parameter& one = model.parameters[i];
      if (ranks == everybody()) {
        one.base = to_zeros && is_defined(one, 0) ? at::zeros_like(one.value).detach() : at::Tensor();
      }
      for (int rank = 0; rank < setting_.ranks; ++rank) {
        if (has(ranks, rank)) sequences::zero(one, rank);
      }
    }
    // A rank that has zeroed all that it had has zeroed everything, also where it had nothing.
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      if (!had_contributed[static_cast<std::size_t>(rank)] || has_contributed(model, rank)) continue;
      for (Parameter& one : model.parameters) forget(one, rank);
    }
    return ranks != 0;
  }

  bool is_at_rest(const Model& model) const { return is_settled(model) && !model.is_fresh; }

  // SGD with momentum.
  bool step(Model& model, int number) {
    if (!is_at_rest(model)) return false;
    drop_slots_of(number);
    const at::NoGradGuard no_grad;
    for (Parameter& one : model.parameters) {
      if (!one.base.defined()) continue;
      one.velocity = one.velocity.defined() ? one.velocity * 0.9 + one.base : one.base.clone();
      one.value.sub_(one.velocity * 0.05);
      if (tolerance_of(setting_) > 0.01 && one.value.abs().max().item<double>() > 30) throw Unclear("rounding grows");
    }
    return true;
  }

  bool clip(Model& model) {
    if (!is_at_rest(model)) return false;
    double squares = 0;
    for (const Parameter& one : model.parameters) {
      if (one.base.defined()) squares += one.base.square().sum().item<double>();
    }
    const double factor = std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6));
    for (Parameter& one : model.parameters) {
      if (one.base.defined()) one.base = one.base * factor;
    }
    return squares > 0;
  }

  bool evaluate(Model& model, Occurrence& occurrence) {
    const Event& event = *occurrence.event;
    if (model.is_fresh || (event.choice != 0 && setting_.shards != 0)) return false;
    // Of forwards with gradients the first one of all ranks does more.
    if (event.choice == 1 && !model.has_synchronised && !setting_.first_alone) return false;
    const bool trains = event.choice == 2, is_local = event.choice == 3;
    if (!setting_.norm || is_local || (model.have_changed == 0 && !trains)) return occurrence.ranks != 0;
    if (!trains && model.have_changed != everybody() && !setting_.buffers_alone) return false;
    share_buffers(model);
    occurrence.ranks = everybody();
    if (!trains) return true;
    const at::NoGradGuard no_grad;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      const Place place{sequence_, event, iteration_[rank], rank};
      compute(model, rank, input_of(place), kAllParts);
    }
    return true;
  }

  // The mean over shards; buffers too.
  bool sharded(const Event& event) {
    Model& model = models_[event.model];
    if (setting_.shards == 0) return false;
    model.is_fresh = false;
    const auto buffers = copies_of(model.buffers[0]);
    std::vector<at::Tensor> after;
    for (Parameter& one : model.parameters) one.base = at::Tensor();
    for (int shard = 0; shard < setting_.shards; ++shard) {
      put(buffers, model.buffers[0]);
      for (int i = 0; i <= event.choice; ++i) {
        const Place place{sequence_, event, i, shard};
        const at::Tensor loss = loss_of(compute(model, 0, input_of(place), parts_of(place)), event.loss, 1);
        if (has(event.ranks, shard)) add_to_bases(model, loss);
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        const at::Tensor part = model.buffers[0][i].to(at::kDouble) / setting_.shards;
        if (shard == 0) after.push_back(part);
        if (shard != 0) after[i] = after[i] + part;
      }
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) after[i] = after[i].to(buffers[i].scalar_type());
    for (auto& of_rank : model.buffers) put(after, of_rank);
    model.have_changed = 0;
    return true;
  }
  void add_to_bases(Model& model, const at::Tensor& loss) const {
    std::vector<at::Tensor> inputs;
    for (const Parameter& one : model.parameters) {
      if (one.value.requires_grad()) inputs.push_back(one.value);
    }
    const auto gradients = torch::autograd::grad({loss}, inputs, {}, false, false, true);
    auto next = gradients.begin();
    for (Parameter& one : model.parameters) {
      if (!one.value.requires_grad()) continue;
      const at::Tensor& gradient = *next++;
      if (gradient.defined())
        one.base = (one.base.defined() ? one.base : at::zeros_like(gradient)) + gradient / setting_.shards;
    }
  }

  bool bare(const Event& event, unsigned ranks) {
    Model& model = models_[event.model];
    if (setting_.samples || setting_.norm || is_in_join_ || model.is_fresh || has_slots_of(event.model)) return false;
    for (int rank = 0; rank < setting_.ranks; ++rank) {
      if (!has(ranks, rank)) continue;
      const Place place{sequence_, event, iteration_[rank], rank};
      const at::Tensor loss = loss_of(compute(model, rank, input_of(place), parts_of(place)), event.loss, 1);
      std::vector<at::Tensor> inputs;
      for (const Parameter& one : model.parameters) {
        if (one.value.requires_grad()) inputs.push_back(one.value);
      }
      auto gradients = torch::autograd::grad({loss}, inputs, {}, false, false, true);
      auto next = gradients.begin();
      for (Parameter& one : model.parameters) {
        if (one.value.requires_grad()) add(one, rank, *next++, {}, false);
      }
    }
    return ranks != 0;
  }

  bool freeze(const Event& event) {
    Model& model = models_[event.model];
    const bool freezes = event.kind == Kind::freeze;
    at::Tensor& parameter = model.net->freezable(event.choice);
    if (!is_at_rest(model) || is_in_join_ || !(setting_.find_unused || setting_.shards != 0)) return false;
    if (freezes && setting_.local_aside) return false;
    if (freezes ? !parameter.requires_grad() : !is_frozen(model)) return false;
    drop_slots_of(event.model);
    if (freezes) parameter.requires_grad_(false);
    if (freezes) return true;
    for (Parameter& one : model.parameters) one.value.requires_grad_(true);
    return true;
  }
  bool grow(const Event& event) {
    Model& model = models_[event.model];
    if (!is_at_rest(model) || is_in_join_ || model.aside) return false;
    const std::uint64_t seed = seed_of({sequence_, event, 0, 0});
    if (event.kind == Kind::add_parameter && model.net->late.defined()) return false;
    if (event.kind == Kind::add_module && model.net->late_head != nullptr) return false;
    drop_slots_of(event.model);
    if (event.kind == Kind::add_parameter) model.net->add_parameter(seed);
    if (event.kind == Kind::add_module) model.net->add_module(seed);
    if (event.kind == Kind::replace_module) model.net->replace_head(seed);
    list_parameters(model);
    model.is_fresh = true;
    return true;
  }

  bool set_aside(const Event& event) {
    Model& model = models_[event.model];
    if (!may_be_set_aside(model)) return false;
    if (event.kind == Kind::set_aside) {
      if (model.aside) return false;
      model.aside.emplace();
      for (Parameter& one : model.parameters) {
        model.aside->push_back(std::exchange(static_cast<Gradient&>(one), Gradient()));
      }
      return true;
    }
    if (!model.aside) return false;
    // What is put where a rank had contributed, and zeroed it, cannot be told from that contribution.
    if ((setting_.samples || has_divided_) && was_added_to(model)) return false;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      if (event.choice == 0) static_cast<Gradient&>(model.parameters[i]) = Gradient();
      add(model.parameters[i], (*model.aside)[i]);
    }
    model.aside.reset();
    return true;
  }
  // A weight cannot be seen in a gradient, nor that it is of a rank without a batch.
  bool may_be_set_aside(const Model& model) const {
    if (is_at_rest(model)) return true;
    if (setting_.samples || !setting_.local_aside || model.is_fresh || is_frozen(model)) return false;
    return std::none_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& one) {
      return std::any_of(std::begin(one.is_tainted), std::end(one.is_tainted), [](bool is_one) { return is_one; });
    });
  }

  bool reload(const Event& event) {
    Model& model = models_[event.model];
    if (model.is_fresh || is_frozen(model) || is_in_join_ || model.aside) return false;
    if (setting_.shares_optimizer || setting_.hook == Hook::power_sgd) return false;  // whose state is more
    drop_slots_of(event.model);
    for (Parameter& one : model.parameters) {
      one.base = at::Tensor();
      for (int rank = 0; rank < setting_.ranks; ++rank) forget(one, rank);
    }
    model.has_begun = model.has_synchronised = false;
    for (auto& buffers : model.buffers) put(model.buffers[0], buffers);
    std::fill(std::begin(model.has_joined), std::end(model.has_joined), false);
    model.have_changed = 0;
    return true;
  }

  bool has_slots_of(int model) const {
    for (const auto& slot : slots_) {
      for (const auto& made : slot) {
        if (made && made->event->through[model]) return true;
      }
    }
    return false;
  }
  void drop_slots_of(int model) {
    for (auto& slot : slots_) {
      for (auto& made : slot) {
        if (made && made->event->through[model]) made.reset();
      }
    }
  }
  void drop_all_slots() {
    for (auto& slot : slots_) {
      for (auto& made : slot) made.reset();
    }
  }

  const Sequence& sequence_;
  const Setting& setting_;
  Model models_[kModels];
  std::optional<Made> slots_[kSlots][kMostRanks];
  std::vector<double> weights_;  // by forward
  std::vector<Occurrence> occurrences_;
  bool is_in_join_ = false;
  bool divides_by_active_ = false, has_divided_ = false;
  bool joined_[kMostRanks] = {};
  int iteration_[kMostRanks] = {};  // whose batch the rank has
  int iterations_ = 0;              // of all joins
};

}  // namespace

std::vector<Occurrence> expected_of(const Sequence& sequence) { return Oracle(sequence).run(); }

}  // namespace lockstep::sequences
