#include "lockstep/train/checkpoint/state_parts.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <sstream>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/random_state.h"
#include "lockstep/train/checkpoint/tensor_types.h"
#include "lockstep/train/ddp/shared_tensors.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kRandom = "random.";
constexpr std::string_view kHook = "hook.";
constexpr const char* kSampler = "sampler";
constexpr const char* kLoader = "loader";
constexpr const char* kScaler = "scaler";
// In the metadata of a set that was saved without user values; null may also be the program's own value. Older versions
// do not write it.
constexpr std::pair<const char*, const char*> kNoUserValues = {"user", "none"};

std::string hook_prefix(int rank) { return fmt::format("{}rank{}.", kHook, rank); }
std::string random_name(int rank) { return rank == 0 ? "random.cpu" : fmt::format("random.cpu.rank{}", rank); }

at::Tensor archived(const ArchiveRef& object) {
  torch::serialize::OutputArchive archive;
  object.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string bytes = std::move(stream).str();
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void unarchive(const at::Tensor& tensor, const ArchiveRef& object) {
  std::istringstream stream(std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  object.load(archive);
}

std::set<std::string> ignored_by(const ModelRef& model) {
  if (model.ddp() == nullptr) return {};
  const auto& names = model.ddp()->options().ignored;
  return {names.begin(), names.end()};
}

// Parameters are common. A rank's forward changes its buffers, and parameters that DDP ignores are not averaged: these
// are rank 0's.
void add_model(StateParts& parts, const ModelRef& model, int rank) {
  Checkpoint checkpoint;
  add_module(checkpoint, *model.module());
  for (const auto& [name, tensor] : checkpoint.tensors) require_own_elements(name, tensor);
  std::set<std::string> of_rank_0 = ignored_by(model);
  for (const auto& item : model.module()->named_buffers()) of_rank_0.insert(item.key());
  for (const auto& item : model.module()->named_parameters()) parts.stepped.insert(std::string(kModel) + item.key());
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (!of_rank_0.contains(name.substr(kModel.size()))) {
      parts.common.emplace(name, tensor);
    } else if (rank == 0) {
      parts.own.emplace(name, tensor);
    }
  }
}

// Of the optimizer's tensors, the names of which begin so are rank 0's: state of parameters that DDP ignores, and the
// last loss that LBFGS was told, which is each rank's own.
std::vector<std::string> optimizer_names_of_rank_0(const State& state) {
  std::vector<std::string> names = {"optimizer.0.prev_loss"};
  const std::set<std::string> ignored = ignored_by(state.model);
  if (ignored.empty()) return names;
  std::set<const at::TensorImpl*> tensors;
  for (const auto& item : state.model.module()->named_parameters()) {
    if (ignored.contains(item.key())) tensors.insert(item.value().unsafeGetTensorImpl());
  }
  std::size_t number = 0;
  for (const auto& group : state.optimizer.get()->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (tensors.contains(parameter.unsafeGetTensorImpl())) names.push_back(fmt::format("{}{}.", kOptimizer, number));
      ++number;
    }
  }
  // Which has one state for all its parameters.
  const bool is_lbfgs = dynamic_cast<const torch::optim::LBFGS*>(state.optimizer.get()) != nullptr;
  if (is_lbfgs && names.size() > 1) names.push_back(std::string(kOptimizer));
  return names;
}

void require_equal_parameters(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const LocalStepsOptimizer*>(&optimizer) == nullptr) return;
  throw Error(
      ErrorKind::invalid_argument,
      "a PostLocalSgdOptimizer leaves the ranks with different parameters, and a checkpoint has only those of rank 0; "
      "each rank can save its model and the optimizer's state_dict() with save_checkpoint()");
}

void add_optimizer_parts(StateParts& parts, const State& state, int rank) {
  const torch::optim::Optimizer& optimizer = *state.optimizer.get();
  require_equal_parameters(optimizer);
  Checkpoint checkpoint;
  const auto* const parted = dynamic_cast<const PartedOptimizer*>(&optimizer);
  if (parted != nullptr) {
    parted->add_part(checkpoint);
  } else {
    add_optimizer(checkpoint, optimizer);
  }
  const std::vector<std::string> of_rank_0 = optimizer_names_of_rank_0(state);
  for (auto& [name, tensor] : checkpoint.tensors) {
    parts.stepped.insert(name);
    const bool is_option = name.starts_with("optimizer.group.");  // which all have
    const auto begins_with = [&](const std::string& prefix) { return name.starts_with(prefix); };
    if (parted != nullptr && !is_option) {
      parts.own.emplace(name, tensor);
    } else if (is_option || std::ranges::none_of(of_rank_0, begins_with)) {
      parts.common.emplace(name, tensor);
    } else if (rank == 0) {
      parts.own.emplace(name, tensor);
    }
  }
  parts.metadata.merge(checkpoint.metadata);
}

LockstepState mode_of(const State& state) {
  DdpBase* const ddp = state.model.ddp();
  return ddp == nullptr || ddp->options().lockstep.shards == 0 ? LockstepState{} : ddp->lockstep_state();
}

std::int64_t number_of(const std::map<std::string, std::string>& metadata, const char* name, std::int64_t most) {
  const Origin origin("the checkpoint's metadata");
  const auto found = metadata.find(name);
  const std::int64_t value = checked_decimal(found == metadata.end() ? "" : found->second, name, origin);
  return checked_between(value, std::int64_t{0}, most, name, origin);
}

LockstepState stored_mode(const Checkpoint& checkpoint, const LockstepState& mine) {
  const auto& told = checkpoint.metadata;
  const auto require = [&](const char* what, const char* name, std::uint64_t now) {
    const std::string then = told.contains(name) ? told.at(name) : "";
    if (then == std::to_string(now)) return;
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the checkpoint was made with {} '{}', but this run has {}", what, then, now));
  };
  require("lockstep mode's number of shards", "shards", static_cast<std::uint64_t>(mine.shards));
  LockstepState mode = mine;
  if (mode.shards == 0) return mode;
  require("the seed of lockstep mode", "shards_seed", mine.seed);
  mode.step = static_cast<std::uint64_t>(number_of(told, "shards_step", INT64_MAX));
  mode.threads = static_cast<int>(number_of(told, "threads", INT_MAX));
  mode.arithmetic = told.contains("arithmetic") ? told.at("arithmetic") : "";
  return mode;
}

// `stored_ranks`: the number of ranks that stored the hook.
TensorsRef::Tensors hook_tensors(const Checkpoint& checkpoint, int rank, int stored_ranks) {
  const std::string prefix = hook_prefix(rank < stored_ranks ? rank : 0);
  TensorsRef::Tensors tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with(prefix)) tensors.emplace(name.substr(prefix.size()), tensor);
  }
  return tensors;
}

using Steps = std::vector<std::function<void()>>;

std::function<void()> in_order(const Steps& steps) {
  return [steps] {
    for (const auto& step : steps) step();
  };
}

[[noreturn]] void refuse_missing(std::string_view what) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("the checkpoint has no {}; leave it out of the State, or load another checkpoint", what));
}

at::Tensor required(const Checkpoint& checkpoint, const char* name) {
  const auto found = checkpoint.tensors.find(name);
  if (found != checkpoint.tensors.end() && found->second.scalar_type() == at::kByte) return found->second;
  refuse_missing(name);
}

}  // namespace

StateParts take_apart(const State& state, int rank, int size) {
  StateParts parts;
  if (state.model.module() != nullptr) add_model(parts, state.model, rank);
  if (state.optimizer.get() != nullptr) add_optimizer_parts(parts, state, rank);
  const LockstepState mode = mode_of(state);
  Checkpoint random;
  add_random_state(random, random_name(rank));
  // In lockstep mode the files hold the same at any number of ranks; random numbers belong to shards.
  if (rank == 0 || mode.shards == 0) parts.own.merge(random.tensors);
  if (state.hook.save) {
    for (auto& [name, tensor] : state.hook.save()) parts.own.emplace(hook_prefix(rank) + name, tensor);
  }
  parts.metadata.insert({{"step", std::to_string(state.step)},
                         {"epoch", std::to_string(state.epoch)},
                         {"ranks", std::to_string(size)},
                         {"shards", std::to_string(mode.shards)}});
  if (mode.shards != 0) {
    parts.metadata.insert({{"shards_seed", std::to_string(mode.seed)},
                           {"shards_step", std::to_string(mode.step)},
                           {"threads", std::to_string(mode.threads)},
                           {"arithmetic", mode.arithmetic}});
  }
  if (!state.user.save) parts.metadata.insert(kNoUserValues);
  if (rank != 0) return parts;
  if (state.sampler.save) parts.own.emplace(kSampler, archived(state.sampler));
  if (state.loader.save) parts.own.emplace(kLoader, archived(state.loader));
  if (state.scaler.save) parts.own.emplace(kScaler, archived(state.scaler));
  if (state.user.save) parts.user = state.user.save();
  return parts;
}

void require_storable(const State& state) {
  try {
    StateParts parts;
    if (state.model.module() != nullptr) add_model(parts, state.model, 0);
    if (state.optimizer.get() != nullptr) add_optimizer_parts(parts, state, 0);
    parts.common.merge(parts.own);
    require_storable(parts.common);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("this model or optimizer cannot be saved: {}", error.what()));
  }
}

bool is_wanted(std::string_view name, const State& state, int rank, int stored_ranks) {
  if (name.starts_with(kModel)) return state.model.module() != nullptr;
  if (name.starts_with(kOptimizer)) return state.optimizer.get() != nullptr;
  if (name.starts_with(kHook)) {
    return state.hook.load != nullptr && name.starts_with(hook_prefix(rank < stored_ranks ? rank : 0));
  }
  if (name == kSampler) return state.sampler.load != nullptr;
  if (name == kLoader) return state.loader.load != nullptr;
  if (name == kScaler) return state.scaler.load != nullptr;
  return name.starts_with(kRandom);
}

std::function<at::Tensor(const std::string& name, const SetTensor& tensor)> targets_in(const State& state) {
  TensorsByName tensors;
  if (const torch::nn::Module* const module = state.model.module()) {
    for (const auto& item : module->named_parameters()) tensors.emplace(std::string(kModel) + item.key(), item.value());
    for (const auto& item : module->named_buffers()) tensors.emplace(std::string(kModel) + item.key(), item.value());
  }
  // Two values for one memory must be compared before it is written.
  for (const auto& [one, other] : shared_names(tensors)) {
    tensors.erase(one);
    tensors.erase(other);
  }
  return [tensors = std::move(tensors)](const std::string& name, const SetTensor& stored) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || !found->second.defined()) return at::Tensor();
    const at::Tensor& own = found->second;
    const bool is_plain =
        own.layout() == at::kStrided && own.is_cpu() && own.is_contiguous() && !own.is_conj() && !own.is_neg();
    if (is_plain && own.sizes() == stored.shape && dtype_name(own.scalar_type()) == stored.dtype) return own;
    return at::Tensor();
  };
}

LoadSteps checked_load(const Checkpoint& checkpoint, const std::string& user, const State& state, int rank, int size,
                       const std::function<void()>& fill) {
  Steps steps = {fill}, of_objects;
  const LockstepState mode = stored_mode(checkpoint, mode_of(state));
  if (state.model.module() != nullptr) steps.push_back(checked_load(checkpoint, *state.model.module()));
  if (torch::optim::Optimizer* const optimizer = state.optimizer.get()) {
    require_equal_parameters(*optimizer);
    auto* const parted = dynamic_cast<PartedOptimizer*>(optimizer);
    steps.push_back(parted != nullptr ? parted->checked_load_part(checkpoint) : checked_load(checkpoint, *optimizer));
  }
  const auto add_archive = [&](const ArchiveRef& object, const char* name) {
    if (!object.load) return;
    of_objects.push_back([object, tensor = required(checkpoint, name)] { unarchive(tensor, object); });
  };
  add_archive(state.sampler, kSampler);
  add_archive(state.loader, kLoader);
  add_archive(state.scaler, kScaler);
  if (state.user.load) {
    const auto told = checkpoint.metadata.find(kNoUserValues.first);
    if (told != checkpoint.metadata.end() && told->second == kNoUserValues.second) refuse_missing("user values");
    of_objects.push_back([load = state.user.load, user] { load(user); });
  }
  if (state.hook.load) {
    const int stored_ranks = static_cast<int>(number_of(checkpoint.metadata, "ranks", INT_MAX));
    of_objects.push_back(
        [load = state.hook.load, tensors = hook_tensors(checkpoint, rank, stored_ranks)] { load(tensors); });
  }
  const at::Tensor random = mode.shards == 0 ? own_random_state(checkpoint, rank, size) : random_state(checkpoint);
  steps.push_back([random] { set_random_state(random); });
  if (mode.shards != 0) {
    steps.push_back([ddp = state.model.ddp(), mode] { ddp->load_lockstep_state(mode); });
  }
  return {.load_objects = in_order(of_objects), .load_tensors = in_order(steps)};
}

}  // namespace lockstep::internal
