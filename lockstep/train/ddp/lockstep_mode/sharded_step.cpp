#include "lockstep/train/ddp/lockstep_mode/sharded_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"
#include "lockstep/train/ddp/lockstep_mode/deterministic.h"
#include "lockstep/train/ddp/lockstep_mode/shard_exchange.h"
#include "lockstep/train/ddp/lockstep_mode/shard_randomness.h"
#include "lockstep/train/ddp/lockstep_mode/thread_count.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"

namespace lockstep::internal {
namespace {

// Whether there are any.
bool check_sync_batch_norms(const torch::nn::Module& module, const ProcessGroup& group) {
  bool has_some = false;
  for (const auto& item : module.named_modules()) {
    const SyncBatchNormTag* layer = sync_batch_norm_tag_of(*item.value());
    if (layer == nullptr) continue;
    if (layer->group().size() != group.size()) {
      throw lockstep_mode_error(
          fmt::format("module '{}' is synchronised over {} of {} ranks; give it the group of the model", item.key(),
                      layer->group().size(), group.size()));
    }
    has_some = true;
  }
  return has_some;
}

// Whether writes to the gradient cannot be seen elsewhere: see sole_owner.h.
bool is_owned(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && owns_its_memory(gradient) && !gradient.requires_grad();
}

std::vector<at::Device> devices_of(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::vector<at::Device> devices;
  for (const NamedTensors* all : {&parameters, &buffers}) {
    for (const auto& [name, tensor] : *all) {
      const bool is_new = !tensor.is_cpu() && std::ranges::find(devices, tensor.device()) == devices.end();
      if (is_new) devices.push_back(tensor.device());
    }
  }
  return devices;
}

std::vector<at::Device> one_of_each_type(const std::vector<at::Device>& devices) {
  std::vector<at::Device> some;
  for (const at::Device device : devices) {
    if (std::ranges::find(some, device.type(), &at::Device::type) == some.end()) some.push_back(device);
  }
  return some;
}

// Sets a flag while it exists.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag) { flag_ = true; }
  ~Raised() { flag_ = false; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
};

}  // namespace

ShardedStep::ShardedStep(const torch::nn::Module& module, const NamedTensors& parameters, const NamedTensors& buffers,
                         ProcessGroup group, const LockstepMode& mode, std::uint64_t wrapper)
    : group_(std::move(group)),
      mode_(mode),
      wrapper_(wrapper),
      devices_(devices_of(parameters, buffers)),
      arithmetic_(arithmetic_here(mode.threads, one_of_each_type(devices_))),
      own_shards_(mode.shards / group_.size()),
      heap_(group_.heap()),
      has_sync_batch_norms_(check_sync_batch_norms(module, group_)),
      parameters_(parameters),
      watch_(tensors_of(parameters)),
      buffers_(buffers) {
  outside_ = std::make_shared<ForwardGraphs>([](ForwardGraphs::Id) {
    if (GradientHook::all_are_accumulated_now()) throw backward_outside_error();
    return true;
  });
  compare_with_other_ranks();
  check_mode(mode_, group_.size());
  if (has_sync_batch_norms_ && !devices_.empty()) {
    // Its backward waits for that of other shards, which autograd runs in one thread for all that a device has.
    throw lockstep_mode_error(fmt::format(
        "a model on {} cannot have a SyncBatchNorm in this mode; use BatchNorm or GroupNorm, or train on the CPU",
        devices_.front().str()));
  }
}

void ShardedStep::compare_with_other_ranks() const {
  const std::string options = fmt::format("{} shards, seed {} and threads {}", mode_.shards, mode_.seed, mode_.threads);
  const auto difference = group_.first_difference(options + "\n" + text_of(arithmetic_));
  if (!difference) return;
  const std::string sides =
      fmt::format("rank 0 has {}, rank {} has {}", difference->on_rank_0, difference->rank, difference->on_rank);
  if (difference->line == 0) throw lockstep_mode_error(sides);
  throw lockstep_mode_error(
      fmt::format("{}, and the bits of results depend on it; run all ranks on the same kind of machine with the same "
                  "libtorch, settings and environment",
                  sides));
}

double ShardedStep::run(const std::function<double(Shard)>& body) {
  if (is_running_ || ShardExchange::is_within_shard()) {
    throw lockstep_mode_error(
        "for_each_shard() was called in the callback of for_each_shard(), of this wrapper or another one; call one "
        "after the other");
  }
  if (is_joined()) {
    throw lockstep_mode_error(
        "a rank in join() has no more batches, and its shards would be missing; give all ranks the same number of "
        "steps");
  }
  drop_gradients();
  buffers_.begin_step();
  std::optional<DeterministicAlgorithms> deterministic;
  if (!devices_.empty()) deterministic.emplace();
  try {
    ShardResult mine = compute(body);
    const at::NoGradGuard no_grad;
    const TimePoint start = steady_clock().now();
    const auto conflict = agree(
        mine, step_, [this](std::size_t tensor) { return neutral_element(tensor); }, group_, wrapper_);
    if (conflict) throw buffers_.conflict_error(*conflict);
    std::vector<at::Tensor> defined;
    std::ranges::copy_if(mine.tensors, std::back_inserter(defined),
                         [](const auto& tensor) { return tensor.defined(); });
    average_over_ranks(defined, group_);
    communication_seconds_ += seconds(steady_clock().now() - start);
    for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].second.mutable_grad() = mine.tensors[p];
    buffers_.take_means(std::span(mine.tensors).subspan(parameters_.size()));
    ++step_;
    return mine.loss;
  } catch (...) {
    group_.note_exception("a step of for_each_shard()");
    watch_.note_in(nullptr);
    drop_gradients();
    buffers_.restore_all();
    throw;
  }
}

Shard ShardedStep::shard_at(int position) const {
  return {.index = group_.rank() * own_shards_ + position, .count = mode_.shards, .step = step_};
}

ShardResult ShardedStep::compute(const std::function<double(Shard)>& body) {
  ShardTree tree([this](std::size_t tensor) { return neutral_element(tensor); });
  const Raised running(is_running_);
  if (!has_sync_batch_norms_) {
    compute_one_by_one(body, tree);
  } else {
    compute_together(body, tree);
  }
  return tree.take();
}

void ShardedStep::compute_one_by_one(const std::function<double(Shard)>& body, ShardTree& tree) {
  // Gradients are allocated where they will be reduced; see ForwardScope for activations.
  const ArenaScope scope(heap_);
  for (int position = 0; position < own_shards_; ++position) {
    const Shard shard = shard_at(position);
    buffers_.restore_changed();
    double loss = 0;
    const auto record = std::make_shared<BackwardRecord>();
    {
      const IsolatedShard isolated;
      const ThreadCount threads(mode_.threads);
      ShardRandomness randomness(mode_.seed, shard, devices_);
      randomness.enter();
      watch_.note_in(record);
      loss = body(shard);
      watch_.note_in(nullptr);
    }
    tree.add(collect(loss, shard, record->left()));
  }
}

// The state of a shard while another one of its rank computes.
struct ShardedStep::ShardContext {
  ShardContext(std::uint64_t seed, const Shard& of, const std::vector<at::Device>& devices)
      : shard(of), randomness(seed, of, devices) {}
  const Shard shard;
  ShardRandomness randomness;
  const std::shared_ptr<BackwardRecord> record = std::make_shared<BackwardRecord>();
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> buffers = {};
  double loss = 0;
};

void ShardedStep::resume(ShardContext& context) {
  std::size_t i = 0;
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad() = std::move(context.gradients[i++]);
  buffers_.load(context.buffers);
  watch_.note_in(context.record);
}

void ShardedStep::suspend(ShardContext& context) {
  watch_.note_in(nullptr);
  std::size_t i = 0;
  for (const auto& [name, parameter] : parameters_) {
    context.gradients[i++] = std::exchange(parameter.mutable_grad(), at::Tensor());
  }
  buffers_.save(context.buffers);
}

void ShardedStep::compute_together(const std::function<double(Shard)>& body, ShardTree& tree) {
  std::deque<ShardContext> contexts;
  for (int position = 0; position < own_shards_; ++position) {
    ShardContext& context = contexts.emplace_back(mode_.seed, shard_at(position), devices_);
    context.gradients.resize(parameters_.size());
    context.buffers = buffers_.values_before();
  }
  const auto context_of = [&](int position) -> ShardContext& { return contexts[static_cast<std::size_t>(position)]; };
  ShardExchange exchange(group_, shard_at(0).index, own_shards_);
  {
    const ThreadCount threads(mode_.threads);
    exchange.run(
        [&](int position) {
          const ArenaScope scope(heap_);
          context_of(position).loss = body(context_of(position).shard);
        },
        [&](int position) {
          resume(context_of(position));
          context_of(position).randomness.enter();
        },
        [&](int position) {
          context_of(position).randomness.leave();
          suspend(context_of(position));
        },
        devices_);
  }
  communication_seconds_ += exchange.communication_seconds();
  const ArenaScope scope(heap_);
  for (ShardContext& context : contexts) {
    resume(context);
    tree.add(collect(context.loss, context.shard, context.record->left()));
  }
  watch_.note_in(nullptr);
}

ShardResult ShardedStep::collect(double loss, const Shard& shard, BackwardRecord::Left left) {
  if (left == BackwardRecord::Left::part) drop_gradients();
  if (left == BackwardRecord::Left::mixture && has_gradients()) {
    fail_everywhere(lockstep_mode_error(fmt::format(
        "a backward pass of shard {} failed, its callback continued, and its partial gradients were added to "
        "those of other backward passes; call zero_grad() when a backward pass fails",
        shard.index)));
  }
  ShardResult result{.loss = loss};
  result.tensors.reserve(parameters_.size() + buffers_.averaged());
  const at::NoGradGuard no_grad;
  collect_gradients(result);
  buffers_.collect(result);
  return result;
}

void ShardedStep::collect_gradients(ShardResult& result) const {
  for (const auto& [name, parameter] : parameters_) {
    at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
    if (gradient.defined()) {
      const bool is_dense = gradient.layout() == at::kStrided;
      if (!is_dense || gradient.scalar_type() != parameter.scalar_type()) {
        fail_everywhere(unsupported_gradient_error(group_.rank(), name,
                                                   is_dense ? "has another dtype than the parameter" : "is sparse"));
      }
      if (!is_owned(gradient) || !has_layout_of(gradient, parameter))
        gradient = at::empty_like(parameter).copy_(gradient);
    }
    result.tensors.push_back(std::move(gradient));
  }
}

at::Tensor ShardedStep::neutral_element(std::size_t tensor) const {
  if (tensor >= parameters_.size()) return buffers_.neutral_element(tensor - parameters_.size());
  return at::full_like(parameters_[tensor].second, -0.0);  // the zero that leaves every other number as it is
}

void ShardedStep::fail_everywhere(const Error& error) const {
  if (group_.size() == 1) throw error;
  throw_on_all_ranks(group_, error);
}

bool ShardedStep::has_gradients() const {
  return std::ranges::any_of(parameters_, [](const auto& named) { return named.second.grad().defined(); });
}

void ShardedStep::drop_gradients() const {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad() = at::Tensor();
}

void ShardedStep::check_forward(bool is_training) const {
  if (is_running_ || !is_training) return;
  throw lockstep_mode_error(
      "a forward pass in training mode was run outside of for_each_shard(), so its gradients would not be averaged; "
      "run it "
      "in the callback of for_each_shard(), or call eval() first");
}

LockstepState ShardedStep::state() const {
  return {.step = step_,
          .shards = mode_.shards,
          .seed = mode_.seed,
          .threads = mode_.threads,
          .arithmetic = text_of(arithmetic_)};
}

void ShardedStep::load_state(const LockstepState& state) {
  if (state.shards != mode_.shards || state.seed != mode_.seed) {
    throw lockstep_mode_error(fmt::format(
        "the state is of a run with {} shards and seed {}, but this one has {} shards and seed {}; use the same values",
        state.shards, state.seed, mode_.shards, mode_.seed));
  }
  if (group_.rank() == 0) warn_of_changes(state);
  step_ = state.step;
}

void ShardedStep::warn_of_changes(const LockstepState& state) const {
  const bool knows_threads = state.threads != 0, knows_arithmetic = !state.arithmetic.empty();
  std::vector<std::string> changed;
  if (knows_threads && state.threads != mode_.threads) {
    changed.push_back(fmt::format("threads of a shard: {}, now {}", state.threads, mode_.threads));
  }
  if (knows_arithmetic) {
    for (std::string& change : changes(parse_arithmetic(state.arithmetic), arithmetic_)) {
      changed.push_back(std::move(change));
    }
  }
  if (!changed.empty()) {
    log_warning(
        fmt::format("lockstep mode: the resumed run will not be bitwise equal to an uninterrupted one. Changes: {}",
                    fmt::join(changed, "; ")));
  }
  if (!knows_threads || !knows_arithmetic) {
    log_warning(
        fmt::format("lockstep mode: the state does not record {}{}{} of the run so far, so it is not known whether the "
                    "resumed run is bitwise equal to an uninterrupted one",
                    knows_threads ? "" : "the number of threads", knows_threads || knows_arithmetic ? "" : " and ",
                    knows_arithmetic ? "" : "the kernels and settings"));
  }
}

}  // namespace lockstep::internal
