#include "lockstep/train/optim/zero_redundancy_optimizer.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/object_codecs.h"
#include "lockstep/train/checkpoint/optimizer_kinds.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/ddp/parameter_numbers.h"
#include "lockstep/train/optim/parameter_exchange.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using Parameters = std::vector<std::vector<at::Tensor>>;  // by group

constexpr std::string_view kPrefix = "optimizer.";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::invalid_argument, "ZeroRedundancyOptimizer: " + why);
}

Parameters parameters_of(const std::vector<OptimizerParamGroup>& groups) {
  Parameters parameters;
  for (const auto& group : groups) parameters.push_back(group.params());
  return parameters;
}

template <class Option>
std::string text_of_option(const char* name, const Option& option) {
  return fmt::format(" {} {}", name, option);
}
std::string text_of_option(const char* name, const std::tuple<double, double>& option) {
  return fmt::format(" {} {} {}", name, std::get<0>(option), std::get<1>(option));
}
template <class Option>
std::string text_of_option(const char*, const std::optional<Option>&) {
  return "";  // of LBFGS alone, which is not elementwise
}

// The relevant options of libtorch's optimizers, without the state that some keep among their options.
std::string text_of(const OptimizerOptions& options) {
  std::string text;
  for_each_kind([&]<class Kind>(Kind) {
    const auto* own = dynamic_cast<const typename Kind::Options*>(&options);
    if (own == nullptr) return;
    text = Kind::kName;
    Kind::each_option(*own, [&](const char* name, const auto& option) { text += text_of_option(name, option); });
  });
  return !text.empty() ? text : fmt::format("an optimizer of type {}", c10::demangle(typeid(options).name()));
}

// The number of groups, and one line for each group and parameter.
std::string description_of(const std::vector<OptimizerParamGroup>& groups, const OptimizerOptions& defaults) {
  std::string text = fmt::format("{} groups\n", groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& parameters = groups[group].params();
    text += fmt::format("group {} of {} parameters\n", group, parameters.size());
    text += fmt::format("group {} options {}\n", group,
                        text_of(groups[group].has_options() ? groups[group].options() : defaults));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& tensor = parameters[i];
      if (!tensor.defined() || tensor.layout() != at::kStrided) {
        text += fmt::format("group {} parameter {} without dense memory\n", group, i);
        continue;
      }
      text += fmt::format("group {} parameter {} {} {} strides {}\n", group, i, tensor.sizes().vec(),
                          c10::toString(tensor.scalar_type()), tensor.strides().vec());
    }
  }
  return text;
}

void require_same_on_all_ranks(const std::vector<OptimizerParamGroup>& groups, const OptimizerOptions& defaults,
                               const ProcessGroup& group) {
  const auto differs = group.first_difference(description_of(groups, defaults));
  if (!differs) return;
  refuse(
      fmt::format("the parameters or options of rank {} differ from those of rank 0. First difference: rank 0 has {}, "
                  "rank {} has {}. Give all ranks the same parameters in the same order, with the same options",
                  differs->rank, differs->on_rank_0, differs->rank, differs->on_rank));
}

void require_usable(const Parameters& parameters) {
  std::map<const void*, std::string> seen;
  for (std::size_t group = 0; group < parameters.size(); ++group) {
    for (std::size_t i = 0; i < parameters[group].size(); ++i) {
      const at::Tensor& tensor = parameters[group][i];
      const std::string name = fmt::format("group {} parameter {}", group, i);
      if (!tensor.defined() || tensor.layout() != at::kStrided) refuse(name + " has no dense memory");
      const auto [other, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), name);
      if (!is_new) refuse(fmt::format("{} is the same tensor as {}; give each parameter once", name, other->second));
    }
  }
  if (seen.empty()) refuse("the list of parameters is empty");
}

// The defaults of an optimizer that has no parameters are those of one that has.
std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(const std::unique_ptr<Optimizer>& optimizer) {
  return optimizer->defaults().clone();
}

std::size_t count_of(const std::vector<OptimizerParamGroup>& groups) {
  std::size_t count = 0;
  for (const auto& group : groups) count += group.params().size();
  return count;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const ParamGroups& groups, const ProcessGroup& group, MakeOptimizer make)
    : Optimizer(groups, defaults_of(make({}))), group_(group), make_(std::move(make)) {
  require_same_on_all_ranks(param_groups_, defaults(), group_);
  require_usable(parameters_of(param_groups_));
  parts_ = partition();
  local_ = make_(part_of_groups(group_.rank()));
}

std::vector<internal::Part> ShardedOptimizer::partition() const {
  std::vector<std::vector<std::int64_t>> elements;
  for (const auto& group : param_groups_) {
    elements.emplace_back();
    for (const at::Tensor& parameter : group.params()) elements.back().push_back(parameter.numel());
  }
  return partition_parameters(elements, group_.size());
}

ShardedOptimizer::ParamGroups ShardedOptimizer::part_of_groups(int rank) const {
  ParamGroups groups;
  const Part& part = parts_[static_cast<std::size_t>(rank)];
  for (std::size_t group = 0; group < part.size(); ++group) {
    std::vector<at::Tensor> parameters;
    for (const std::size_t index : part[group]) parameters.push_back(param_groups_[group].params()[index]);
    groups.emplace_back(std::move(parameters), param_groups_[group].options().clone());
  }
  return groups;
}

// Of a rank's parameters, in the order of its local optimizer, their indices among all.
std::vector<std::size_t> ShardedOptimizer::numbers_of(int rank) const {
  std::vector<std::size_t> numbers;
  std::size_t first = 0;
  const Part& part = parts_[static_cast<std::size_t>(rank)];
  for (std::size_t group = 0; group < part.size(); ++group) {
    for (const std::size_t index : part[group]) numbers.push_back(first + index);
    first += param_groups_[group].params().size();
  }
  return numbers;
}

void ShardedOptimizer::copy_options_to(Optimizer& local) const {
  for (std::size_t group = 0; group < param_groups_.size(); ++group) {
    local.param_groups()[group].set_options(param_groups_[group].options().clone());
  }
}

// A caller that has this as an Optimizer& may add parameters to it, which no rank would update.
void ShardedOptimizer::require_all_partitioned() const {
  std::size_t partitioned = 0;
  for (const Part& part : parts_) {
    for (const auto& indices : part) partitioned += indices.size();
  }
  const std::size_t all = count_of(param_groups_);
  if (partitioned == all && parts_[0].size() == param_groups_.size()) return;
  refuse(
      fmt::format("it has {} parameters, but only {} are assigned to ranks; add parameters with add_param_group() of "
                  "ZeroRedundancyOptimizer, not of torch::optim::Optimizer",
                  all, partitioned));
}

at::Tensor ShardedOptimizer::step(LossClosure closure) {
  require_all_partitioned();
  copy_options_to(*local_);
  consolidated_.reset();
  at::Tensor loss = local_->step(std::move(closure));
  exchange_updated();
  return loss;
}

void ShardedOptimizer::exchange_updated() const {
  std::vector<at::Tensor> all;
  for (const auto& group : param_groups_) all.insert(all.end(), group.params().begin(), group.params().end());
  std::vector<std::vector<at::Tensor>> updated;
  std::vector<std::size_t> exchanged;
  for (int rank = 0; rank < group_.size(); ++rank) {
    updated.emplace_back();
    for (const std::size_t number : numbers_of(rank)) {
      // An optimizer looks at gradients alone: a frozen parameter keeps its gradient until it is zeroed.
      if (!all[number].requires_grad() && !all[number].grad().defined()) continue;
      updated.back().push_back(all[number]);
      exchanged.push_back(number);
    }
  }
  std::ranges::sort(exchanged);
  exchange_parameters(group_, updated, name_with_numbers("ZeroRedundancyOptimizer", exchanged));
}

void ShardedOptimizer::add_param_group(const OptimizerParamGroup& added) {
  require_all_partitioned();
  std::vector<OptimizerParamGroup> groups = param_groups_;
  groups.push_back(added);
  require_same_on_all_ranks(groups, defaults(), group_);
  require_usable(parameters_of(groups));
  Optimizer::add_param_group(added);
  parts_ = partition();
  const OptimizerParamGroup mine = part_of_groups(group_.rank()).back();
  local_->add_param_group(mine);
  // Optimizers that create their state in the constructor create none for parameters that are added later.
  const std::unique_ptr<Optimizer> maker = make_({mine});
  for (auto& [parameter, state] : maker->state()) local_->state()[parameter] = std::move(state);
  copy_options_to(*local_);
  consolidated_.reset();
}

void ShardedOptimizer::consolidate_state_dict(int to) {
  if (to < 0 || to >= group_.size()) {
    refuse(fmt::format("consolidate_state_dict: {} is not a rank of this group of {} ranks", to, group_.size()));
  }
  Checkpoint all;
  add_part(all);
  for (auto& [name, tensor] : all.tensors) tensor = tensor.cpu();
  using Codec = ObjectCodec<std::map<std::string, at::Tensor>>;
  const std::vector<std::string> parts = gather_bytes_to(group_, Codec::encode(all.tensors), to, kMostShapeBytes);
  consolidated_.reset();
  if (group_.rank() != to) return;
  all.tensors.clear();
  for (const std::string& part : parts) all.tensors.merge(Codec::decode(part));
  consolidated_ = std::move(all);
}

const Checkpoint& ShardedOptimizer::state_dict() const {
  if (!consolidated_) {
    refuse(
        fmt::format("state_dict: this rank does not hold the state of all ranks; call consolidate_state_dict({}) on "
                    "all ranks after the last step",
                    group_.rank()));
  }
  return *consolidated_;
}

// The state without that of parameters which other ranks update.
Checkpoint ShardedOptimizer::without_others(const Checkpoint& state) const {
  const std::vector<std::size_t> own = numbers_of(group_.rank());
  const std::set<std::size_t> mine(own.begin(), own.end());
  const std::size_t all = count_of(param_groups_);
  Checkpoint rest{.metadata = state.metadata};
  for (const auto& [name, tensor] : state.tensors) {
    std::size_t number = all;
    if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
    if (number >= all || mine.contains(number)) rest.tensors.emplace(name, tensor);
  }
  return rest;
}

void ShardedOptimizer::add_part(Checkpoint& checkpoint) const {
  require_all_partitioned();
  copy_options_to(*local_);
  add_optimizer(checkpoint, *local_, kPrefix, numbers_of(group_.rank()));
  set_group_sizes(checkpoint, *this, kPrefix);
}

std::function<void()> ShardedOptimizer::checked_load_part(const Checkpoint& checkpoint) {
  require_all_partitioned();
  const std::shared_ptr<Optimizer> loaded = make_(part_of_groups(group_.rank()));
  checked_load(without_others(checkpoint), *loaded, kPrefix, numbers_of(group_.rank()), {}, this)();
  return [this, loaded]() mutable {
    for (std::size_t group = 0; group < param_groups_.size(); ++group) {
      param_groups_[group].options().set_lr(loaded->param_groups()[group].options().get_lr());
    }
    local_ = std::move(loaded);
    copy_options_to(*local_);
    consolidated_.reset();
  };
}

void ShardedOptimizer::load_state_dict(const Checkpoint& state) {
  std::string problem;
  std::function<void()> load;
  try {
    load = checked_load_part(state);
  } catch (const Error& error) {
    problem = error.what();
  }
  std::string problems;
  const std::vector<std::string> all = all_gather_bytes(group_, problem);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) problems += fmt::format("\nrank {}: {}", rank, all[rank]);
  }
  if (!problems.empty()) refuse("load_state_dict: the state does not fit, and no rank has loaded it." + problems);
  load();
}

void ShardedOptimizer::save(torch::serialize::OutputArchive&) const {
  refuse("save: an archive would hold only this rank's part; use consolidate_state_dict() and state_dict()");
}

void ShardedOptimizer::load(torch::serialize::InputArchive&) {
  refuse("load: an archive does not say which parameters its state belongs to; use load_state_dict()");
}

}  // namespace lockstep
