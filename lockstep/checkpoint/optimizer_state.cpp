#include "lockstep/checkpoint/optimizer_state.h"

#include <ATen/ops/full.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

using torch::optim::AdagradParamState;
using torch::optim::AdamParamState;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;
using torch::optim::RMSpropParamState;
using torch::optim::SGDParamState;
using Fields = std::map<std::string, at::Tensor>;

enum class Stored { always, sometimes };

// What is stored of each kind of optimizer. visit(name, field, stored): a field is a tensor, or the number of steps.
struct SgdCodec {
  using State = SGDParamState;
  static constexpr std::string_view kName = "SGD";
  template <class Visit>
  static void each_field(State& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer(), Stored::always);
  }
};

template <class ParamState>
struct AdamCodec {
  using State = ParamState;
  static constexpr std::string_view kName = std::is_same_v<State, AdamParamState> ? "Adam" : "AdamW";
  template <class Visit>
  static void each_field(State& state, const Visit& visit) {
    visit("step", state.step(), Stored::always);
    visit("exp_avg", state.exp_avg(), Stored::always);
    visit("exp_avg_sq", state.exp_avg_sq(), Stored::always);
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), Stored::sometimes);
  }
};

struct RmsPropCodec {
  using State = RMSpropParamState;
  static constexpr std::string_view kName = "RMSprop";
  template <class Visit>
  static void each_field(State& state, const Visit& visit) {
    visit("step", state.step(), Stored::always);
    visit("square_avg", state.square_avg(), Stored::always);
    visit("momentum_buffer", state.momentum_buffer(), Stored::sometimes);
    visit("grad_avg", state.grad_avg(), Stored::sometimes);
  }
};

struct AdagradCodec {
  using State = AdagradParamState;
  static constexpr std::string_view kName = "Adagrad";
  template <class Visit>
  static void each_field(State& state, const Visit& visit) {
    visit("step", state.step(), Stored::always);
    visit("sum", state.sum(), Stored::always);
  }
};

template <class Field>
constexpr bool is_step = std::is_same_v<Field, std::int64_t>;

template <class Action>
auto with_codec(const Optimizer& optimizer, Action action) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) return action(SgdCodec());
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) return action(AdamCodec<AdamParamState>());
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) return action(AdamCodec<AdamWParamState>());
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr) return action(RmsPropCodec());
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr) return action(AdagradCodec());
  throw Error(ErrorKind::invalid_argument, "optimizer state: only SGD, Adam, AdamW, RMSprop and Adagrad can be stored");
}

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

// What the checkpoint calls the i-th parameter.
std::string parameter_name(std::string_view prefix, const std::vector<std::size_t>& numbers, std::size_t i) {
  return fmt::format("{}{}.", prefix, numbers.empty() ? i : numbers.at(i));
}

std::string learning_rate_name(std::string_view prefix, std::size_t group) {
  return fmt::format("{}group.{}.lr", prefix, group);
}

// What is stored for an optimizer, as it is taken apart: what was recognised is removed from `rest`.
class StoredTensors {
 public:
  StoredTensors(const Checkpoint& checkpoint, std::string_view prefix) : prefix_(prefix) {
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (name.starts_with(prefix)) rest_.emplace(name, tensor);
    }
  }

  bool has(const std::string& name) const { return rest_.contains(name); }
  // Takes the tensor out, or notes what is wrong with it.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
    const auto found = rest_.find(name);
    if (found == rest_.end()) {
      problems_ += fmt::format("\n  missing in the checkpoint: {}", name);
      return {};
    }
    const at::Tensor tensor = found->second;
    rest_.erase(found);
    if (tensor.sizes() == shape && tensor.scalar_type() == type) return tensor;
    problems_ +=
        fmt::format("\n  different: {} is {} {} in the checkpoint, {} {} in the optimizer", name,
                    c10::toString(tensor.scalar_type()), tensor.sizes().vec(), c10::toString(type), shape.vec());
    return {};
  }
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

// The state of one parameter; nullptr if the checkpoint has none.
template <class Codec>
std::unique_ptr<OptimizerParamState> take_state(StoredTensors& stored, const std::string& prefix,
                                                const at::Tensor& parameter) {
  auto state = std::make_unique<typename Codec::State>();
  bool is_any = false, is_complete = true;
  Codec::each_field(*state, [&](const char* name, const auto&, Stored when) {
    is_any = is_any || (when == Stored::always && stored.has(prefix + name));
  });
  if (!is_any) return nullptr;
  Codec::each_field(*state, [&]<class Field>(const char* name, Field& field, Stored when) {
    if (when == Stored::sometimes && !stored.has(prefix + name)) return;
    const at::Tensor tensor = is_step<Field> ? stored.take(prefix + name, {}, at::kLong)
                                             : stored.take(prefix + name, parameter.sizes(), parameter.scalar_type());
    is_complete = is_complete && tensor.defined();
    if (!tensor.defined()) return;
    if constexpr (is_step<Field>) {
      field = tensor.item<std::int64_t>();
    } else {
      field = tensor.to(parameter.device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
  });
  if (!is_complete) return nullptr;
  return state;
}

template <class Codec>
std::function<void()> checked_load_with(const Checkpoint& checkpoint, Optimizer& optimizer, std::string_view prefix,
                                        const std::vector<std::size_t>& numbers) {
  const std::string type_name = std::string(prefix) + "type";
  const auto type = checkpoint.metadata.find(type_name);
  if (type == checkpoint.metadata.end() || type->second != Codec::kName) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the checkpoint has the state of {} optimizer under '{}', this one is {}",
                            type == checkpoint.metadata.end() ? "no" : "the " + type->second, prefix, Codec::kName));
  }
  StoredTensors stored(checkpoint, prefix);
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  using States = std::vector<std::unique_ptr<OptimizerParamState>>;
  const auto states = std::make_shared<States>();  // a std::function is copied
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    states->push_back(take_state<Codec>(stored, parameter_name(prefix, numbers, i), parameters[i]));
  }
  std::vector<at::Tensor> learning_rates;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    learning_rates.push_back(stored.take(learning_rate_name(prefix, i), {}, at::kDouble));
  }
  stored.finish();
  return [&optimizer, parameters, states, learning_rates] {
    optimizer.state().clear();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if ((*states)[i]) optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move((*states)[i]);
    }
    for (std::size_t i = 0; i < learning_rates.size(); ++i) {
      optimizer.param_groups()[i].options().set_lr(learning_rates[i].item<double>());
    }
  };
}

}  // namespace

void add_optimizer(Checkpoint& checkpoint, const Optimizer& optimizer, std::string_view prefix,
                   const std::vector<std::size_t>& numbers) {
  with_codec(optimizer, [&](auto codec) {
    checkpoint.metadata[std::string(prefix) + "type"] = codec.kName;
    const std::vector<at::Tensor> parameters = parameters_of(optimizer);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto state = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      auto& fields = dynamic_cast<typename decltype(codec)::State&>(*state->second);
      codec.each_field(fields, [&]<class Field>(const char* name, const Field& field, Stored) {
        at::Tensor tensor;
        if constexpr (is_step<Field>) {
          tensor = at::full({}, field, at::kLong);
        } else {
          tensor = field;
        }
        if (tensor.defined()) checkpoint.tensors.insert_or_assign(parameter_name(prefix, numbers, i) + name, tensor);
      });
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

std::function<void()> internal::checked_load(const Checkpoint& checkpoint, Optimizer& optimizer,
                                             std::string_view prefix, const std::vector<std::size_t>& numbers) {
  return with_codec(optimizer, [&](auto codec) {
    return checked_load_with<decltype(codec)>(checkpoint, optimizer, prefix, numbers);
  });
}

}  // namespace lockstep
