#include "lockstep/train/checkpoint/optimizer_state.h"

#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/optimizer_kinds.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using Fields = std::map<std::string, at::Tensor>;

struct Slot {
  at::Tensor parameter;
  std::size_t group;
};

// All parameters, in order.
std::vector<Slot> slots_of(const Optimizer& optimizer) {
  std::vector<Slot> slots;
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (const at::Tensor& parameter : optimizer.param_groups()[group].params()) slots.push_back({parameter, group});
  }
  return slots;
}

// The name of the i-th parameter in the checkpoint.
std::string parameter_name(std::string_view prefix, const std::vector<std::size_t>& numbers, std::size_t i) {
  return fmt::format("{}{}.", prefix, numbers.empty() ? i : numbers.at(i));
}

std::string learning_rate_name(std::string_view prefix, std::size_t group) {
  return fmt::format("{}group.{}.lr", prefix, group);
}

std::string groups_name(std::string_view prefix) { return std::string(prefix) + "groups"; }

// As it is stored: "[2, 4]".
std::string group_sizes(const Optimizer& optimizer) {
  std::vector<std::size_t> sizes;
  for (const auto& group : optimizer.param_groups()) sizes.push_back(group.params().size());
  return fmt::format("{}", sizes);
}

// Otherwise learning rates and options would reach the wrong parameters. Older checkpoints lack the sizes.
void require_same_groups(const Checkpoint& checkpoint, std::string_view prefix, const Optimizer& optimizer) {
  const auto stored = checkpoint.metadata.find(groups_name(prefix));
  const std::string own = group_sizes(optimizer);
  if (stored == checkpoint.metadata.end() || stored->second == own) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the checkpoint's '{}' does not fit the optimizer, which is unchanged: the sizes of its "
                          "parameter groups are {} in the checkpoint, {} in the optimizer; create the optimizer with "
                          "the saved groups in the same order, or load without it",
                          prefix, stored->second, own));
}

// The stored state of an optimizer while it is parsed: recognised tensors are removed from `rest`.
class StoredTensors {
 public:
  StoredTensors(const Checkpoint& checkpoint, std::string_view prefix) : prefix_(prefix) {
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (name.starts_with(prefix)) rest_.emplace(name, tensor);
    }
  }

  bool has(const std::string& name) const { return rest_.contains(name); }
  // Takes the tensor out, of `type` or `also`, or notes the problem.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType type, at::ScalarType also) {
    const auto found = rest_.find(name);
    if (found == rest_.end()) {
      problems_ += fmt::format("\n  missing from the checkpoint: {}", name);
      return {};
    }
    const at::Tensor tensor = found->second;
    rest_.erase(found);
    const at::ScalarType found_type = tensor.scalar_type();
    if (tensor.sizes() == shape && (found_type == type || found_type == also)) return tensor;
    problems_ += fmt::format("\n  different: {} is {} {} in the checkpoint, {} {} in the optimizer", name,
                             c10::toString(found_type), tensor.sizes().vec(), c10::toString(type), shape.vec());
    return {};
  }
  at::Tensor take(const std::string& name, at::ScalarType type) { return take(name, {}, type, type); }
  void finish() {
    for (const auto& item : rest_) problems_ += fmt::format("\n  unexpected in the checkpoint: {}", item.first);
    if (problems_.empty()) return;
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("the checkpoint's '{}' does not fit the optimizer, which is unchanged:{}", prefix_, problems_));
  }

 private:
  std::string prefix_;
  Fields rest_;
  std::string problems_;
};

// The shapes and types of the tensors of a state: of a parameter, and of all parameters together.
struct Shapes {
  at::Tensor parameter;
  std::int64_t elements = 0;
  at::ScalarType type = at::kFloat;  // that all parameters have in common
};

Shapes shapes_of(const std::vector<Slot>& slots) {
  Shapes shapes;
  for (const Slot& slot : slots) {
    shapes.type = shapes.parameter.defined() ? c10::promoteTypes(shapes.type, slot.parameter.scalar_type())
                                             : slot.parameter.scalar_type();
    shapes.elements += slot.parameter.numel();
    shapes.parameter = slot.parameter;
  }
  return shapes;
}

// Takes the fields of one state out of the stored ones.
class StateTaker {
 public:
  StateTaker(StoredTensors& stored, std::string prefix, Shapes shapes, std::size_t list_size)
      : stored_(stored), prefix_(std::move(prefix)), shapes_(std::move(shapes)), list_size_(list_size) {}

  bool is_complete() const { return is_complete_; }

  void take(const StateField& info, std::int64_t& field) {
    if (const at::Tensor tensor = number(info, at::kLong); tensor.defined()) field = tensor.item<std::int64_t>();
  }
  void take(const StateField& info, double& field) {
    if (const at::Tensor tensor = number(info, at::kDouble); tensor.defined()) field = tensor.item<double>();
  }
  void take(const StateField& info, at::Tensor& field) {
    const std::string name = prefix_ + info.name;
    if (info.stored == Stored::always || stored_.has(name)) field = tensor(info, name);
  }
  // Lists that lie beside each other are of one length.
  void take(const StateField& info, std::deque<at::Tensor>& field) {
    if (!length_) {
      length_ = 0;
      while (*length_ < list_size_ && stored_.has(item_name(info, *length_))) ++*length_;
    }
    for (std::size_t i = 0; i < *length_; ++i) field.push_back(tensor(info, item_name(info, i)));
  }
  // Memory that is written before it is read; there is one place for each item of the lists.
  void take(const StateField& info, std::optional<std::vector<at::Tensor>>& field) {
    std::vector<at::Tensor> items(list_size_);
    for (std::size_t i = 0; i < list_size_; ++i) {
      if (stored_.has(item_name(info, i))) items[i] = tensor(info, item_name(info, i));
    }
    if (std::ranges::any_of(items, [](const at::Tensor& item) { return item.defined(); })) field = std::move(items);
  }

 private:
  std::string item_name(const StateField& info, std::size_t i) const {
    return fmt::format("{}{}.{}", prefix_, info.name, i);
  }
  at::Tensor number(const StateField& info, at::ScalarType type) {
    const std::string name = prefix_ + info.name;
    if (info.stored == Stored::sometimes && !stored_.has(name)) return {};
    return noted(stored_.take(name, type));
  }
  // A copy on the parameter's device. The first H_diag of LBFGS is a whole number.
  at::Tensor tensor(const StateField& info, const std::string& name) {
    const at::Tensor& like = shapes_.parameter;
    at::Tensor found;
    switch (info.shape) {
      case StateShape::parameter:
        found = stored_.take(name, like.sizes(), like.scalar_type(), like.scalar_type());
        break;
      case StateShape::scalar: found = stored_.take(name, {}, shapes_.type, at::kLong); break;
      case StateShape::flat: found = stored_.take(name, {shapes_.elements}, shapes_.type, shapes_.type); break;
    }
    if (!noted(found).defined()) return {};
    return found.to(like.device(), found.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor noted(const at::Tensor& tensor) {
    is_complete_ = is_complete_ && tensor.defined();
    return tensor;
  }

  StoredTensors& stored_;
  std::string prefix_;
  Shapes shapes_;
  std::size_t list_size_;
  std::optional<std::size_t> length_;
  bool is_complete_ = true;
};

std::size_t list_size_of(const OptimizerOptions& options) {
  const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSOptions*>(&options);
  return lbfgs == nullptr ? 0 : static_cast<std::size_t>(std::max<std::int64_t>(lbfgs->history_size(), 0));
}

// The state of one parameter; nullptr if the checkpoint has none.
template <class Kind>
std::unique_ptr<OptimizerParamState> take_state(StoredTensors& stored, const std::string& prefix, const Shapes& shapes,
                                                const OptimizerOptions& group_options) {
  const auto& options = dynamic_cast<const typename Kind::Options&>(group_options);
  auto state = std::make_unique<typename Kind::State>();
  bool is_any = Kind::kAlwaysHasState;
  Kind::each_field(*state, options, [&](const StateField& info, const auto&) {
    is_any = is_any || (info.stored == Stored::always && stored.has(prefix + info.name));
  });
  if (!is_any) return nullptr;
  StateTaker taker(stored, prefix, shapes, list_size_of(options));
  Kind::each_field(*state, options, [&](const StateField& info, auto& field) { taker.take(info, field); });
  if (!taker.is_complete()) return nullptr;
  return state;
}

template <class Kind>
void require_kind(const Checkpoint& checkpoint, std::string_view prefix) {
  const auto type = checkpoint.metadata.find(std::string(prefix) + "type");
  if (type != checkpoint.metadata.end() && type->second == Kind::kName) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the checkpoint has the state of {} optimizer under '{}'; this optimizer is {}",
                          type == checkpoint.metadata.end() ? "no" : "the " + type->second, prefix, Kind::kName));
}

template <class Kind>
std::function<void()> checked_load_with(const Checkpoint& checkpoint, Optimizer& optimizer, std::string_view prefix,
                                        const std::vector<std::size_t>& numbers, const OptionsByGroup& options,
                                        const Optimizer* whole) {
  require_kind<Kind>(checkpoint, prefix);
  if (whole != nullptr || numbers.empty()) require_same_groups(checkpoint, prefix, whole ? *whole : optimizer);
  StoredTensors stored(checkpoint, prefix);
  const std::vector<Slot> slots = slots_of(optimizer);
  Shapes shapes = shapes_of(slots);
  using States = std::vector<std::unique_ptr<OptimizerParamState>>;
  const auto states = std::make_shared<States>();  // a std::function is copied
  for (std::size_t i = 0; i < slots.size(); ++i) {
    shapes.parameter = slots[i].parameter;
    const OptimizerOptions& of_group =
        options.empty() ? optimizer.param_groups()[slots[i].group].options() : *options.at(slots[i].group);
    states->push_back(Kind::kIsWhole && i > 0
                          ? nullptr
                          : take_state<Kind>(stored, parameter_name(prefix, numbers, i), shapes, of_group));
  }
  std::vector<at::Tensor> learning_rates;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    learning_rates.push_back(stored.take(learning_rate_name(prefix, i), at::kDouble));
  }
  stored.finish();
  return [&optimizer, slots, states, learning_rates, options] {
    optimizer.state().clear();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if ((*states)[i]) optimizer.state()[slots[i].parameter.unsafeGetTensorImpl()] = std::move((*states)[i]);
    }
    for (std::size_t i = 0; i < learning_rates.size(); ++i) {
      if (!options.empty()) optimizer.param_groups()[i].set_options(options[i]->clone());
      optimizer.param_groups()[i].options().set_lr(learning_rates[i].item<double>());
    }
  };
}

// Adds the fields of one state, by name.
struct StateAdder {
  Fields& tensors;
  std::string prefix;

  void add(const StateField& info, std::int64_t field) const { put(info.name, at::full({}, field, at::kLong)); }
  void add(const StateField& info, double field) const { put(info.name, at::full({}, field, at::kDouble)); }
  void add(const StateField& info, const at::Tensor& field) const { put(info.name, field); }
  void add(const StateField& info, const std::deque<at::Tensor>& field) const { put_list(info, field); }
  void add(const StateField& info, const std::optional<std::vector<at::Tensor>>& field) const {
    if (field) put_list(info, *field);
  }

 private:
  void put(const std::string& name, const at::Tensor& tensor) const {
    if (tensor.defined()) tensors.insert_or_assign(prefix + name, tensor);
  }
  template <class List>
  void put_list(const StateField& info, const List& list) const {
    std::size_t i = 0;
    for (const at::Tensor& item : list) put(fmt::format("{}.{}", info.name, i++), item);
  }
};

}  // namespace

void add_optimizer(Checkpoint& checkpoint, const Optimizer& optimizer, std::string_view prefix,
                   const std::vector<std::size_t>& numbers) {
  with_kind(optimizer, [&]<class Kind>(Kind) {
    checkpoint.metadata[std::string(prefix) + "type"] = Kind::kName;
    if (numbers.empty()) set_group_sizes(checkpoint, optimizer, prefix);
    const std::vector<Slot> slots = slots_of(optimizer);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto state = optimizer.state().find(slots[i].parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      const auto& options = optimizer.param_groups()[slots[i].group].options();
      const StateAdder adder{checkpoint.tensors, parameter_name(prefix, numbers, i)};
      Kind::each_field(dynamic_cast<typename Kind::State&>(*state->second),
                       dynamic_cast<const typename Kind::Options&>(options),
                       [&](const StateField& info, const auto& field) { adder.add(info, field); });
    }
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      checkpoint.tensors.insert_or_assign(learning_rate_name(prefix, i),
                                          at::full({}, optimizer.param_groups()[i].options().get_lr(), at::kDouble));
    }
  });
}

void load_optimizer(const Checkpoint& checkpoint, Optimizer& optimizer, std::string_view prefix,
                    const std::vector<std::size_t>& numbers) {
  internal::checked_load(checkpoint, optimizer, prefix, numbers)();
}

void internal::set_group_sizes(Checkpoint& checkpoint, const Optimizer& optimizer, std::string_view prefix) {
  checkpoint.metadata[groups_name(prefix)] = group_sizes(optimizer);
}

std::function<void()> internal::checked_load(const Checkpoint& checkpoint, Optimizer& optimizer,
                                             std::string_view prefix, const std::vector<std::size_t>& numbers,
                                             const OptionsByGroup& options, const Optimizer* whole) {
  std::function<void()> load;
  with_kind(optimizer, [&]<class Kind>(Kind) {
    load = checked_load_with<Kind>(checkpoint, optimizer, prefix, numbers, options, whole);
  });
  return load;
}

}  // namespace lockstep
