#include "lockstep/train/checkpoint/torch_optimizer_reader.h"

#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/optimizer_kinds.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/checkpoint/torch_files.h"

namespace lockstep::internal {
namespace {

constexpr std::int64_t kLongestHistory = 1 << 20;

template <class Kind>
constexpr bool is_adam = std::is_same_v<Kind, AdamKind> || std::is_same_v<Kind, AdamWKind>;

// A number, or a tensor of one, as learning rates may be.
std::optional<double> number_value(const TorchFile& file, const PickleValue& value) {
  if (value.is(PickleKind::integer)) return static_cast<double>(value.integer());
  if (value.is(PickleKind::number)) return value.number();
  if (!value.is(PickleKind::tensor)) return std::nullopt;
  const TorchTensor saved = file.tensor(value);
  if (!std::ranges::all_of(saved.shape, [](std::int64_t size) { return size == 1; })) return std::nullopt;
  return read_tensor(file, "", saved).item<double>();
}

// Sets options to the file's values.
struct OptionReader {
  const TorchFile& file;
  const PickleValue& options;
  const std::string& where;
  std::string& problems;

  template <class Option>
  void operator()(const char* name, Option& option) const {
    const auto value = options.find(name);
    if (!value) {
      problems += fmt::format("\n  missing from the checkpoint: {}.{}", where, name);
    } else if (!set(option, *value)) {
      problems += fmt::format("\n  different: {}.{} is {} in the checkpoint, which the optimizer does not accept",
                              where, name, to_string(value->kind()));
    }
  }

 private:
  bool set(double& option, const PickleValue& value) const {
    const auto number = number_value(file, value);
    if (number) option = *number;
    return number.has_value();
  }
  bool set(bool& option, const PickleValue& value) const {
    if (!value.is(PickleKind::boolean)) return false;
    option = value.boolean();
    return true;
  }
  bool set(std::int64_t& option, const PickleValue& value) const {
    if (!value.is(PickleKind::integer)) return false;
    option = value.integer();
    return true;
  }
  // libtorch needs max_eval, which optimizers fill in when they are made.
  bool set(std::optional<std::int64_t>& option, const PickleValue& value) const { return set(option.emplace(), value); }
  bool set(std::optional<std::string>& option, const PickleValue& value) const {
    option.reset();
    if (value.is(PickleKind::text)) option = std::string(value.text());
    return value.is(PickleKind::text) || value.is(PickleKind::none);
  }
  bool set(std::tuple<double, double>& option, const PickleValue& value) const {
    const bool is_pair = (value.is(PickleKind::tuple) || value.is(PickleKind::list)) && value.size() == 2;
    return is_pair && set(std::get<0>(option), value.item(0)) && set(std::get<1>(option), value.item(1));
  }
};

bool is_true(const PickleValue& options, const char* name) {
  const auto value = options.find(name);
  return value && value->is(PickleKind::boolean) && value->boolean();
}

// Whether the options of a group are those of a kind of optimizer. Old files do not distinguish AdamW from Adam.
template <class Kind>
bool is_of(const PickleValue& group) {
  bool has_all = true;
  typename Kind::Options options(/*lr=*/0.1);
  Kind::each_option(options, [&](const char* name, const auto&) { has_all = has_all && group.find(name); });
  if (!is_adam<Kind> || !group.find("decoupled_weight_decay")) return has_all;
  return has_all && is_true(group, "decoupled_weight_decay") == std::is_same_v<Kind, AdamWKind>;
}

// The kinds of optimizers that have the options of a group, in words.
std::string kinds_of(const PickleValue& group) {
  std::vector<std::string> names;
  for_each_kind([&]<class Kind>(Kind) {
    if (is_of<Kind>(group)) names.emplace_back(Kind::kName);
  });
  if (!names.empty()) return fmt::format("{}", fmt::join(names, " or "));
  for (std::size_t i = 0; i < std::min<std::size_t>(group.size(), 20); ++i) names.push_back(key_text(group.key(i)));
  return fmt::format("another kind, with the options {}", fmt::join(names, " "));
}

// The types of those fields of the state that are numbers.
template <class Kind>
std::map<std::string, at::ScalarType> number_types() {
  std::map<std::string, at::ScalarType> types;
  typename Kind::State state;
  Kind::each_field(state, typename Kind::Options(/*lr=*/0.1), [&]<class Field>(const StateField& info, const Field&) {
    if (std::is_same_v<Field, std::int64_t>) types[info.name] = at::kLong;
    if (std::is_same_v<Field, double>) types[info.name] = at::kDouble;
  });
  return types;
}

at::ScalarType common_type(const std::vector<at::Tensor>& tensors) {
  at::ScalarType type = tensors.empty() ? at::kFloat : tensors.front().scalar_type();
  for (const at::Tensor& tensor : tensors) type = c10::promoteTypes(type, tensor.scalar_type());
  return type;
}

}  // namespace

std::string key_text(const PickleValue& key) {
  if (key.is(PickleKind::integer)) return std::to_string(key.integer());
  return key.is(PickleKind::text) ? std::string(key.text()) : fmt::format("({})", to_string(key.kind()));
}

TorchOptimizerReader::TorchOptimizerReader(const TorchFile& file, const PickleValue& dict,
                                           torch::optim::Optimizer& optimizer, std::string_view key)
    : file_(file), dict_(dict), optimizer_(optimizer), prefix_(key.empty() ? "" : fmt::format("{}.", key)) {
  for (const auto& group : optimizer.param_groups()) {
    parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
  }
}

std::function<void()> TorchOptimizerReader::checked_load() {
  std::function<void()> load;
  with_kind(optimizer_, [&]<class Kind>(Kind) {
    checkpoint_.metadata[prefix_ + "state.type"] = Kind::kName;
    read_groups<Kind>();
    read_state<Kind>();
  });
  try {
    load = internal::checked_load(checkpoint_, optimizer_, prefix_ + "state.", {}, options_);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}{}", file_.name(), error.what(), problems_));
  }
  throw_problems();
  return load;
}

void TorchOptimizerReader::throw_problems() const {
  if (problems_.empty()) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: the state dict does not fit the optimizer, which is "
                                                       "unchanged:{}",
                                                       file_.name(), problems_));
}

template <class Kind>
void TorchOptimizerReader::require_kind(const PickleValue& group) const {
  if (is_of<Kind>(group)) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: the state dict is for {}; this optimizer, which is unchanged, is {}", file_.name(),
                          kinds_of(group), Kind::kName));
}

template <class Kind>
void TorchOptimizerReader::read_groups() {
  const PickleValue groups = dict_.at("param_groups");
  const auto& own = optimizer_.param_groups();
  for (std::size_t i = 0; i < std::min(groups.size(), own.size()); ++i) {
    const PickleValue group = groups.item(i);
    if (i == 0) require_kind<Kind>(group);
    const std::string where = fmt::format("{}param_groups.{}", prefix_, i);
    std::shared_ptr<torch::optim::OptimizerOptions> options = own[i].options().clone();
    Kind::each_option(dynamic_cast<typename Kind::Options&>(*options), OptionReader{file_, group, where, problems_});
    if (is_true(group, "maximize"))
      problem(where + ".maximize is True in the checkpoint, which libtorch does not support");
    if (const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSOptions*>(options.get());
        lbfgs != nullptr && (lbfgs->history_size() < 1 || lbfgs->history_size() > kLongestHistory)) {
      problem(fmt::format("{}.history_size is {} in the checkpoint; it must be from 1 to {}", where,
                          lbfgs->history_size(), kLongestHistory));
    }
    checkpoint_.tensors.emplace(fmt::format("{}state.group.{}.lr", prefix_, i),
                                at::full({}, options->get_lr(), at::kDouble));
    options_.push_back(std::move(options));
    read_parameters(i, group);
  }
  if (groups.size() != own.size()) {
    problem(fmt::format("different: {}param_groups has {} groups in the checkpoint, {} in the optimizer", prefix_,
                        groups.size(), own.size()));
  }
  throw_problems();
}

void TorchOptimizerReader::read_parameters(std::size_t group, const PickleValue& options) {
  const PickleValue numbers = options.at("params");
  const std::size_t own = optimizer_.param_groups()[group].params().size();
  const std::string where = fmt::format("{}param_groups.{}.params", prefix_, group);
  if (numbers.size() != own) {
    problem(fmt::format("different: {} has {} parameters in the checkpoint, {} in the optimizer", where, numbers.size(),
                        own));
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::string name = key_text(numbers.item(i));
    if (!numbers_.emplace(name, numbers_.size()).second) problem(fmt::format("{} has {} twice", where, name));
  }
}

template <class Kind>
void TorchOptimizerReader::read_state() {
  const auto numbers = number_types<Kind>();
  const at::ScalarType common = common_type(parameters_);
  const PickleValue state = dict_.at("state");
  for (std::size_t i = 0; i < state.size(); ++i) {
    const std::string name = key_text(state.key(i));
    const auto found = numbers_.find(name);
    const PickleValue entry = state.value(i);
    if (found == numbers_.end() || !entry.is(PickleKind::dict)) {
      problem(fmt::format("unexpected in the checkpoint: {}state.{}", prefix_, name));
      continue;
    }
    const at::ScalarType type = Kind::kIsWhole ? common : parameters_[found->second].scalar_type();
    read_entry(entry, fmt::format("{}state.{}.", prefix_, found->second), numbers, type);
  }
}

void TorchOptimizerReader::read_entry(const PickleValue& entry, const std::string& where,
                                      const std::map<std::string, at::ScalarType>& numbers, at::ScalarType type) {
  const auto add = [&](const std::string& name, const PickleValue& value, at::ScalarType wanted, bool is_number) {
    if (value.is(PickleKind::none)) return;
    const at::Tensor tensor = value_of(value, name, wanted, is_number);
    if (tensor.defined()) checkpoint_.tensors.emplace(name, tensor);
  };
  for (std::size_t i = 0; i < entry.size(); ++i) {
    const std::string field = key_text(entry.key(i)), name = where + field;
    const PickleValue value = entry.value(i);
    const auto number = numbers.find(field);
    if (number != numbers.end()) {
      add(name, value, number->second, true);
    } else if (value.is(PickleKind::list) || value.is(PickleKind::tuple)) {
      for (std::size_t k = 0; k < value.size(); ++k) add(fmt::format("{}.{}", name, k), value.item(k), type, false);
    } else {
      add(name, value, type, false);
    }
  }
}

// Undefined if there is a problem.
at::Tensor TorchOptimizerReader::value_of(const PickleValue& value, const std::string& where, at::ScalarType type,
                                          bool is_number) {
  if (!is_number && value.is(PickleKind::tensor)) {
    const TorchTensor saved = file_.tensor(value);
    check_memory(file_.name(), saved.bytes);
    bytes_ += saved.bytes;
    check_memory(file_.name(), bytes_);
    const at::Tensor tensor = read_tensor(file_, where, saved);
    return at::isFloatingType(type) ? tensor.to(type) : tensor;
  }
  const auto number = number_value(file_, value);
  const bool is_whole = number && std::abs(*number) < 0x1p53 && std::trunc(*number) == *number;
  if (!number || (is_number && type == at::kLong && !is_whole)) {
    problem(fmt::format("different: {} is {} in the checkpoint, {} in the optimizer", where,
                        number ? fmt::format("{}", *number) : std::string(to_string(value.kind())),
                        !is_number            ? "a tensor"
                        : type == at::kDouble ? "a number"
                                              : "an integer"));
    return {};
  }
  if (is_number) return at::full({}, *number, type);
  return value.is(PickleKind::integer) ? at::full({}, value.integer(), at::kLong) : at::full({}, *number, type);
}

}  // namespace lockstep::internal
