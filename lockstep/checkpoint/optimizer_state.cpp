#include "lockstep/checkpoint/optimizer_state.h"

#include <ATen/ops/full.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

constexpr const char* kStep = "step";

struct SgdCodec {
  static constexpr std::string_view kName = "SGD";
  static Fields fields(const OptimizerParamState& base) {
    const auto& state = dynamic_cast<const SGDParamState&>(base);
    return {{"momentum_buffer", state.momentum_buffer()}};
  }
  static std::unique_ptr<OptimizerParamState> state(Fields fields) {
    auto state = std::make_unique<SGDParamState>();
    state->momentum_buffer(fields["momentum_buffer"]);
    return state;
  }
  static std::vector<std::string> required() { return {"momentum_buffer"}; }
  static std::vector<std::string> optional() { return {}; }
};

template <class State>
struct AdamCodec {
  static constexpr std::string_view kName = std::is_same_v<State, AdamParamState> ? "Adam" : "AdamW";
  static Fields fields(const OptimizerParamState& base) {
    const auto& state = dynamic_cast<const State&>(base);
    return {{kStep, at::full({}, state.step(), at::kLong)},
            {"exp_avg", state.exp_avg()},
            {"exp_avg_sq", state.exp_avg_sq()},
            {"max_exp_avg_sq", state.max_exp_avg_sq()}};
  }
  static std::unique_ptr<OptimizerParamState> state(Fields fields) {
    auto state = std::make_unique<State>();
    state->step(fields[kStep].template item<std::int64_t>());
    state->exp_avg(fields["exp_avg"]);
    state->exp_avg_sq(fields["exp_avg_sq"]);
    state->max_exp_avg_sq(fields["max_exp_avg_sq"]);
    return state;
  }
  static std::vector<std::string> required() { return {kStep, "exp_avg", "exp_avg_sq"}; }
  static std::vector<std::string> optional() { return {"max_exp_avg_sq"}; }
};

struct RmsPropCodec {
  static constexpr std::string_view kName = "RMSprop";
  static Fields fields(const OptimizerParamState& base) {
    const auto& state = dynamic_cast<const RMSpropParamState&>(base);
    return {{kStep, at::full({}, state.step(), at::kLong)},
            {"square_avg", state.square_avg()},
            {"momentum_buffer", state.momentum_buffer()},
            {"grad_avg", state.grad_avg()}};
  }
  static std::unique_ptr<OptimizerParamState> state(Fields fields) {
    auto state = std::make_unique<RMSpropParamState>();
    state->step(fields[kStep].item<std::int64_t>());
    state->square_avg(fields["square_avg"]);
    state->momentum_buffer(fields["momentum_buffer"]);
    state->grad_avg(fields["grad_avg"]);
    return state;
  }
  static std::vector<std::string> required() { return {kStep, "square_avg"}; }
  static std::vector<std::string> optional() { return {"momentum_buffer", "grad_avg"}; }
};

struct AdagradCodec {
  static constexpr std::string_view kName = "Adagrad";
  static Fields fields(const OptimizerParamState& base) {
    const auto& state = dynamic_cast<const AdagradParamState&>(base);
    return {{kStep, at::full({}, state.step(), at::kLong)}, {"sum", state.sum()}};
  }
  static std::unique_ptr<OptimizerParamState> state(Fields fields) {
    auto state = std::make_unique<AdagradParamState>();
    state->step(fields[kStep].item<std::int64_t>());
    state->sum(fields["sum"]);
    return state;
  }
  static std::vector<std::string> required() { return {kStep, "sum"}; }
  static std::vector<std::string> optional() { return {}; }
};

template <class Action>
void with_codec(const Optimizer& optimizer, Action action) {
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
class Stored {
 public:
  Stored(const Checkpoint& checkpoint, std::string_view prefix) : prefix_(prefix) {
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
std::unique_ptr<OptimizerParamState> take_state(Stored& stored, const std::string& prefix,
                                                const at::Tensor& parameter) {
  std::vector<std::string> names;
  bool is_any = false;
  for (const std::string& field : Codec::required()) {
    is_any = is_any || stored.has(prefix + field);
    names.push_back(field);
  }
  if (!is_any) return nullptr;
  for (const std::string& field : Codec::optional()) {
    if (stored.has(prefix + field)) names.push_back(field);
  }
  Fields fields;
  bool is_complete = true;
  for (const std::string& field : names) {
    const bool is_step = field == kStep;
    const at::Tensor tensor = is_step ? stored.take(prefix + field, {}, at::kLong)
                                      : stored.take(prefix + field, parameter.sizes(), parameter.scalar_type());
    is_complete = is_complete && tensor.defined();
    if (tensor.defined()) {
      fields[field] = tensor.to(is_step ? at::kCPU : parameter.device(), tensor.scalar_type(), false, /*copy=*/true);
    }
  }
  return is_complete ? Codec::state(std::move(fields)) : nullptr;
}

template <class Codec>
void load_with(const Checkpoint& checkpoint, Optimizer& optimizer, std::string_view prefix,
               const std::vector<std::size_t>& numbers) {
  const std::string type_name = std::string(prefix) + "type";
  const auto type = checkpoint.metadata.find(type_name);
  if (type == checkpoint.metadata.end() || type->second != Codec::kName) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the checkpoint has the state of {} optimizer under '{}', this one is {}",
                            type == checkpoint.metadata.end() ? "no" : "the " + type->second, prefix, Codec::kName));
  }
  Stored stored(checkpoint, prefix);
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  std::vector<std::unique_ptr<OptimizerParamState>> states;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    states.push_back(take_state<Codec>(stored, parameter_name(prefix, numbers, i), parameters[i]));
  }
  std::vector<at::Tensor> learning_rates;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    learning_rates.push_back(stored.take(learning_rate_name(prefix, i), {}, at::kDouble));
  }
  stored.finish();
  optimizer.state().clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (states[i]) optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move(states[i]);
  }
  for (std::size_t i = 0; i < learning_rates.size(); ++i) {
    optimizer.param_groups()[i].options().set_lr(learning_rates[i].item<double>());
  }
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
      for (const auto& [field, tensor] : codec.fields(*state->second)) {
        if (tensor.defined()) {
          checkpoint.tensors.insert_or_assign(parameter_name(prefix, numbers, i) + field, tensor);
        }
      }
    }
    for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      checkpoint.tensors.insert_or_assign(learning_rate_name(prefix, i),
                                          at::full({}, optimizer.param_groups()[i].options().get_lr(), at::kDouble));
    }
  });
}

void load_optimizer(const Checkpoint& checkpoint, Optimizer& optimizer, std::string_view prefix,
                    const std::vector<std::size_t>& numbers) {
  with_codec(optimizer, [&](auto codec) { load_with<decltype(codec)>(checkpoint, optimizer, prefix, numbers); });
}

}  // namespace lockstep
