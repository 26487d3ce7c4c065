#include "lockstep/train/checkpoint/torch_optimizer_state.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/optimizer_kinds.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/torch_files.h"
#include "lockstep/train/checkpoint/torch_optimizer_reader.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::optim::Optimizer;

struct OptionWriter {
  TorchValue::Dict& options;

  template <class Option>
  void operator()(const char* name, const Option& option) const {
    options.emplace_back(name, TorchValue{option});
  }
  void operator()(const char* name, const std::tuple<double, double>& option) const {
    options.emplace_back(name, TorchValue{TorchValue::Tuple{{{std::get<0>(option)}, {std::get<1>(option)}}}});
  }
  template <class Option>
  void operator()(const char* name, const std::optional<Option>& option) const {
    options.emplace_back(name, option ? TorchValue{*option} : TorchValue{});
  }
};

struct FieldWriter {
  TorchValue::Dict& fields;

  // PyTorch counts steps in a tensor.
  void operator()(const StateField& info, std::int64_t field) const {
    if (std::string_view(info.name) == "step") {
      put(info, torch_value(info.name, at::full({}, static_cast<double>(field), at::kFloat)));
    } else {
      put(info, {field});
    }
  }
  void operator()(const StateField& info, double field) const {
    if (info.stored == Stored::always) put(info, {field});
  }
  void operator()(const StateField& info, const at::Tensor& field) const {
    if (field.defined()) put(info, value_of(info, field));
  }
  void operator()(const StateField& info, const std::deque<at::Tensor>& field) const {
    if (info.stored == Stored::always) put(info, list_of(info, field));
  }
  void operator()(const StateField& info, const std::optional<std::vector<at::Tensor>>& field) const {
    if (field) put(info, list_of(info, *field));
  }

 private:
  void put(const StateField& info, TorchValue value) const { fields.emplace_back(info.name, std::move(value)); }
  // The first H_diag of LBFGS is the number 1.
  static TorchValue value_of(const StateField& info, const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    return tensor.scalar_type() == at::kLong ? TorchValue{tensor.item<std::int64_t>()} : torch_value(info.name, tensor);
  }
  template <class Tensors>
  static TorchValue list_of(const StateField& info, const Tensors& tensors) {
    TorchValue::List list;
    for (const at::Tensor& tensor : tensors) list.push_back(value_of(info, tensor));
    return {std::move(list)};
  }
};

// The options that only Python has, at its defaults.
template <class Kind>
void add_python_options(TorchValue::Dict& options) {
  if (std::is_same_v<Kind, LbfgsKind>) return;
  constexpr bool kIsAdam = std::is_same_v<Kind, AdamKind> || std::is_same_v<Kind, AdamWKind>;
  options.emplace_back("maximize", TorchValue{false});
  options.emplace_back("foreach", TorchValue{});
  options.emplace_back("differentiable", TorchValue{false});
  if (kIsAdam || std::is_same_v<Kind, RmsPropKind>) options.emplace_back("capturable", TorchValue{false});
  if (!std::is_same_v<Kind, RmsPropKind>) options.emplace_back("fused", TorchValue{});
  if (kIsAdam) options.emplace_back("decoupled_weight_decay", TorchValue{std::is_same_v<Kind, AdamWKind>});
}

template <class Kind>
TorchValue state_dict_with(const Optimizer& optimizer) {
  TorchValue::Dict state;
  TorchValue::List groups;
  std::int64_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = dynamic_cast<const typename Kind::Options&>(group.options());
    TorchValue::List numbers;
    for (const at::Tensor& parameter : group.params()) {
      if (const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
          found != optimizer.state().end()) {
        TorchValue::Dict fields;
        Kind::each_field(dynamic_cast<typename Kind::State&>(*found->second), options, FieldWriter{fields});
        state.emplace_back(number, TorchValue{std::move(fields)});
      }
      numbers.emplace_back().value = number++;
    }
    TorchValue::Dict dict;
    Kind::each_option(options, OptionWriter{dict});
    add_python_options<Kind>(dict);
    dict.emplace_back("params", TorchValue{std::move(numbers)});
    groups.push_back({std::move(dict)});
  }
  return {TorchValue::Dict{{"state", {std::move(state)}}, {"param_groups", {std::move(groups)}}}};
}

void require_whole(const Optimizer& optimizer) {
  if (dynamic_cast<const PartedOptimizer*>(&optimizer) == nullptr) return;
  throw Error(ErrorKind::invalid_argument,
              "a PyTorch state dict needs a plain optimizer: the state of a sharded optimizer is spread over the "
              "ranks; use a plain optimizer of the same kind, see checkpoint/torch_optimizer_state.h");
}

// The entry `key` of a dict or list, or within its entries.
std::optional<PickleValue> find_entry(const PickleValue& root, std::string_view key) {
  if (key.empty()) return root;
  const bool is_dict = root.is(PickleKind::dict);
  if (!is_dict && !root.is(PickleKind::list) && !root.is(PickleKind::tuple)) return std::nullopt;
  for (std::size_t i = 0; i < root.size(); ++i) {
    const std::string name = is_dict ? key_text(root.key(i)) : std::to_string(i);
    if (!key.starts_with(name)) continue;
    const PickleValue entry = is_dict ? root.value(i) : root.item(i);
    if (key.size() == name.size()) return entry;
    if (key[name.size()] != '.') continue;
    if (const auto found = find_entry(entry, key.substr(name.size() + 1))) return found;
  }
  return std::nullopt;
}

std::string keys_of(const PickleValue& value) {
  if (!value.is(PickleKind::dict)) return fmt::format("holds {}", to_string(value.kind()));
  std::string keys;
  for (std::size_t i = 0; i < std::min<std::size_t>(value.size(), 20); ++i) {
    keys += fmt::format("{}'{}'", i == 0 ? "" : ", ", key_text(value.key(i)));
  }
  return fmt::format("has {}{}", keys.empty() ? "no entries" : keys, value.size() > 20 ? ", ..." : "");
}

PickleValue state_dict_in(const TorchFile& file, std::string_view key) {
  const auto entry = find_entry(file.root(), key);
  if (!entry) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} has no entry '{}': it {}", file.name(), key, keys_of(file.root())));
  }
  if (entry->is(PickleKind::dict) && entry->find("state") && entry->find("param_groups")) return *entry;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: {} is not the state dict of an optimizer in Python, which has 'state' and "
                          "'param_groups': it {}; give the key of the entry that is one",
                          file.name(), key.empty() ? "it" : fmt::format("'{}'", key), keys_of(*entry)));
}

}  // namespace

TorchValue torch_state_dict(const Optimizer& optimizer) {
  require_whole(optimizer);
  TorchValue dict;
  with_kind(optimizer, [&]<class Kind>(Kind) { dict = state_dict_with<Kind>(optimizer); });
  return dict;
}

void load_torch_optimizer(const std::filesystem::path& path, Optimizer& optimizer, std::string_view key) {
  require_whole(optimizer);
  const TorchFile file(path);
  TorchOptimizerReader reader(file, state_dict_in(file, key), optimizer, key);
  reader.checked_load()();
}

}  // namespace lockstep
