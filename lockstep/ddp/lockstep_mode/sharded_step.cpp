#include "lockstep/ddp/lockstep_mode/sharded_step.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/ddp/buckets/gradient_layout.h"
#include "lockstep/ddp/checks/ddp_errors.h"
#include "lockstep/ddp/lockstep_mode/shard_exchange.h"
#include "lockstep/ddp/lockstep_mode/thread_count.h"
#include "lockstep/ddp/uneven_inputs/join_state.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/consistency_check.h"
#include "lockstep/group/ownership.h"

namespace lockstep {
namespace {

Error refusal(const std::string& why) { return Error(ErrorKind::invalid_argument, "lockstep mode: " + why); }

SyncBatchNormNames synchronised_layers(const torch::nn::Module& module, const ProcessGroup& group) {
  SyncBatchNormNames names;
  for (const auto& item : module.named_modules()) {
    const SyncBatchNormTag* layer = synchronised(*item.value());
    if (layer == nullptr) continue;
    if (layer->group().size() != group.size()) {
      throw refusal(fmt::format("module '{}' is synchronised over {} of {} ranks; give it the group of the model",
                                item.key(), layer->group().size(), group.size()));
    }
    names.emplace(layer, fmt::format("'{}'", item.key()));
  }
  return names;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

void check_numbers(const LockstepMode& mode, int ranks) {
  if (mode.shards < 1 || !std::has_single_bit(static_cast<unsigned>(mode.shards))) {
    throw refusal(fmt::format("{} shards are no power of two", mode.shards));
  }
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    throw refusal(fmt::format("{} ranks are no power of two", ranks));
  }
  if (mode.shards % ranks != 0) {
    throw refusal(fmt::format("{} shards are too few for {} ranks", mode.shards, ranks));
  }
  if (mode.threads < 1) {
    throw refusal(fmt::format("threads is {}; a shard computes with one thread or more", mode.threads));
  }
}

// Sebastiano Vigna's splitmix64.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Between enter() and leave() torch's default generator yields a shard's own numbers, and no other rank of this process
// uses it. Any number of times; leave() in the thread of enter().
class ShardRandomness {
 public:
  ShardRandomness(std::uint64_t seed, const Shard& shard)
      : seed_(mixed(mixed(mixed(seed) + shard.step) + static_cast<std::uint64_t>(shard.index))),
        turn_(turns(), std::defer_lock),
        generator_(at::detail::getDefaultCPUGenerator()) {}
  ~ShardRandomness() { leave(); }
  ShardRandomness(const ShardRandomness&) = delete;
  ShardRandomness& operator=(const ShardRandomness&) = delete;

  void enter() {
    turn_.lock();
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
    if (state_.defined()) {
      generator_.set_state(state_);
    } else {
      generator_.set_current_seed(seed_);
    }
  }
  void leave() {
    if (!turn_.owns_lock()) return;
    {
      const std::lock_guard lock(generator_.mutex());
      state_ = generator_.get_state();
      generator_.set_state(before_);
    }
    turn_.unlock();
  }

 private:
  static std::mutex& turns() {
    static std::mutex mutex;
    return mutex;
  }

  const std::uint64_t seed_;
  std::unique_lock<std::mutex> turn_;
  at::Generator generator_;
  at::Tensor before_, state_;
};

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {  // which autograd does not see
  if (from.nbytes() != 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

std::string_view bytes_of(const at::Tensor& dense) {
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

// Whether nobody else can see what is written to the gradient: see ownership.h.
bool is_owned(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && owns_its_memory(gradient) && !gradient.requires_grad();
}

}  // namespace

ShardedStep::ShardedStep(const torch::nn::Module& module, const NamedTensors& parameters, const NamedTensors& buffers,
                         ProcessGroup group, const LockstepMode& mode)
    : group_(std::move(group)),
      mode_(mode),
      arithmetic_(arithmetic_here(mode.threads)),
      own_shards_(mode.shards / group_.size()),
      heap_(group_.heap()),
      synchronised_(synchronised_layers(module, group_)),
      parameters_(parameters),
      watch_(tensors_of(parameters)) {
  agree_on_mode();
  check_numbers(mode_, group_.size());
  for (const auto& named : buffers) {
    if (!named.second.is_non_overlapping_and_dense()) continue;  // nobody can write to it
    (at::isFloatingType(named.second.scalar_type()) ? averaged_ : counted_).push_back(named);
  }
  for (const auto* kind : {&averaged_, &counted_}) {
    for (const auto& [name, buffer] : *kind) before_.push_back(at::empty_like(buffer));
  }
  is_changed_.resize(before_.size());
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.is_cpu()) continue;
    throw refusal(fmt::format("parameter {} is on {}; it works on the CPU", name, parameter.device().str()));
  }
}

void ShardedStep::agree_on_mode() const {
  const std::string options = fmt::format("{} shards, seed {} and threads {}", mode_.shards, mode_.seed, mode_.threads);
  const auto difference = first_difference(group_, options + "\n" + text_of(arithmetic_));
  if (!difference) return;
  const std::string sides =
      fmt::format("rank 0 has {}, rank {} has {}", difference->on_rank_0, difference->rank, difference->on_rank);
  if (difference->line == 0) throw refusal(sides);
  throw refusal(
      fmt::format("{}, and bits depend on it; give all ranks the same kind of machine, the same libtorch, settings and "
                  "environment",
                  sides));
}

void ShardedStep::fail_everywhere(const Error& error) const {
  if (group_.size() > 1) group_.abort(error.what());  // the others wait, and get the same text
  throw error;
}

double ShardedStep::run(const std::function<double(Shard)>& body) {
  if (is_running_) throw refusal("for_each_shard() was called by a shard's own callback");
  if (is_joined()) {
    throw refusal(
        "a rank in join() has no more batches, and its shards would be missing; give all ranks as many steps");
  }
  drop_gradients();
  std::size_t i = 0;
  for (const auto* kind : {&averaged_, &counted_}) {
    for (const auto& [name, buffer] : *kind) before_[i++].copy_(buffer);
  }
  is_changed_.assign(is_changed_.size(), false);
  try {
    ShardTree tree([this](std::size_t tensor) { return stand_in(tensor); });
    struct Running {
      explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
      ~Running() { flag_ = false; }
      bool& flag_;
    };
    {
      const Running running(is_running_);
      if (synchronised_.empty()) {
        compute_one_by_one(body, tree);
      } else {
        compute_together(body, tree);
      }
    }
    ShardResult mine = tree.take();
    const at::NoGradGuard no_grad;
    const TimePoint start = steady_clock().now();
    agree(mine);
    std::vector<at::Tensor> defined;
    for (const at::Tensor& tensor : mine.tensors) {
      if (tensor.defined()) defined.push_back(tensor);
    }
    average_over_ranks(defined, group_);
    communication_seconds_ += seconds(steady_clock().now() - start);
    for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].second.mutable_grad() = mine.tensors[p];
    for (std::size_t b = 0; b < averaged_.size(); ++b) {
      const at::Tensor& mean = mine.tensors[parameters_.size() + b];
      if (mean.defined()) averaged_[b].second.copy_(mean);
    }
    ++step_;
    return mine.loss;
  } catch (...) {
    group_.note_exception("a step of for_each_shard()");
    watch_.note_in(nullptr);
    drop_gradients();
    is_changed_.assign(is_changed_.size(), true);
    restore_buffers();
    throw;
  }
}

Shard ShardedStep::shard_at(int position) const {
  return {.index = group_.rank() * own_shards_ + position, .count = mode_.shards, .step = step_};
}

void ShardedStep::compute_one_by_one(const std::function<double(Shard)>& body, ShardTree& tree) {
  // Gradients are born where they will be reduced; see DdpBase::begin_forward() for activations.
  const ArenaScope scope(heap_);
  for (int position = 0; position < own_shards_; ++position) {
    const Shard shard = shard_at(position);
    restore_buffers();
    double loss = 0;
    const auto record = std::make_shared<BackwardRecord>();
    {
      const IsolatedShard lone;
      const ThreadCount threads(mode_.threads);
      ShardRandomness randomness(mode_.seed, shard);
      randomness.enter();
      watch_.note_in(record);
      loss = body(shard);
      watch_.note_in(nullptr);
    }
    tree.add(collect(loss, shard, record->left()));
  }
}

// What a shard takes along when another one of its rank has its turn.
struct ShardedStep::Lane {
  Lane(std::uint64_t seed, const Shard& of) : shard(of), randomness(seed, of) {}
  const Shard shard;
  ShardRandomness randomness;
  const std::shared_ptr<BackwardRecord> record = std::make_shared<BackwardRecord>();
  std::vector<at::Tensor> gradients = {};
  std::vector<at::Tensor> buffers = {};
  double loss = 0;
};

void ShardedStep::bring(Lane& lane) {
  std::size_t i = 0;
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad() = std::move(lane.gradients[i++]);
  i = 0;
  for (const auto* kind : {&averaged_, &counted_}) {
    for (const auto& [name, buffer] : *kind) copy_bytes(buffer, lane.buffers[i++]);
  }
  watch_.note_in(lane.record);
}

void ShardedStep::put_away(Lane& lane) {
  watch_.note_in(nullptr);
  std::size_t i = 0;
  for (const auto& [name, parameter] : parameters_) {
    lane.gradients[i++] = std::exchange(parameter.mutable_grad(), at::Tensor());
  }
  i = 0;
  for (const auto* kind : {&averaged_, &counted_}) {
    for (const auto& [name, buffer] : *kind) copy_bytes(lane.buffers[i++], buffer);
  }
}

void ShardedStep::compute_together(const std::function<double(Shard)>& body, ShardTree& tree) {
  std::deque<Lane> lanes;
  for (int position = 0; position < own_shards_; ++position) {
    Lane& lane = lanes.emplace_back(mode_.seed, shard_at(position));
    lane.gradients.resize(parameters_.size());
    for (const at::Tensor& before : before_) lane.buffers.push_back(before.clone());
  }
  const auto lane_at = [&lanes](int position) -> Lane& { return lanes[static_cast<std::size_t>(position)]; };
  ShardExchange exchange(group_, shard_at(0).index, own_shards_, synchronised_);
  {
    const ThreadCount threads(mode_.threads);
    exchange.run(
        [&](int position) {
          const ArenaScope scope(heap_);
          lane_at(position).loss = body(lane_at(position).shard);
        },
        [&](int position) {
          bring(lane_at(position));
          lane_at(position).randomness.enter();
        },
        [&](int position) {
          lane_at(position).randomness.leave();
          put_away(lane_at(position));
        });
  }
  communication_seconds_ += exchange.communication_seconds();
  const ArenaScope scope(heap_);
  for (Lane& lane : lanes) {
    bring(lane);
    tree.add(collect(lane.loss, lane.shard, lane.record->left()));
  }
  watch_.note_in(nullptr);
}

ShardResult ShardedStep::collect(double loss, const Shard& shard, BackwardRecord::Left left) {
  if (left == BackwardRecord::Left::part) drop_gradients();
  if (left == BackwardRecord::Left::mixture && has_gradients()) {
    fail_everywhere(refusal(
        fmt::format("a backward of shard {} failed, its callback went on, and what it left has been added to the "
                    "gradients of other backwards; call zero_grad() when a backward fails",
                    shard.index)));
  }
  ShardResult result{.loss = loss};
  result.tensors.reserve(parameters_.size() + averaged_.size());
  const at::NoGradGuard no_grad;
  collect_gradients(result);
  collect_buffers(result);
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

void ShardedStep::collect_buffers(ShardResult& result) {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    const bool is_averaged = i < averaged_.size();
    const at::Tensor& buffer = (is_averaged ? averaged_[i] : counted_[i - averaged_.size()]).second;
    is_changed_[i] = bytes_of(buffer) != bytes_of(before_[i]);
    if (is_averaged) {
      result.tensors.push_back(is_changed_[i] ? at::empty_like(buffer).copy_(buffer) : at::Tensor());
    } else {
      result.hashes.push_back(is_changed_[i] ? hash_of(bytes_of(buffer)) : 0);
    }
  }
}

// Ranks tell each other what their shards have left, so that all do the same with it.
void ShardedStep::agree(ShardResult& mine) const {
  constexpr std::size_t kStep = 0, kLoss = 1, kConflict = 2, kHashes = 3;
  const std::size_t defined = kHashes + mine.hashes.size(), words = defined + mine.tensors.size();
  std::vector<std::int64_t> told{static_cast<std::int64_t>(step_), std::bit_cast<std::int64_t>(mine.loss),
                                 mine.conflict};
  for (const std::uint64_t hash : mine.hashes) told.push_back(static_cast<std::int64_t>(hash));
  for (const at::Tensor& tensor : mine.tensors) told.push_back(tensor.defined() ? 1 : 0);
  const auto all = group_.all_gather(at::from_blob(told.data(), {static_cast<std::int64_t>(words)}, at::kLong),
                                     {.name = "lockstep mode, what shards left"});
  std::vector<double> losses;
  std::vector<bool> is_defined(mine.tensors.size());
  const auto* first = all[0].const_data_ptr<std::int64_t>();
  std::int64_t conflict = -1;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto* row = all[rank].const_data_ptr<std::int64_t>();
    if (row[kStep] != first[kStep]) {
      throw Error(
          ErrorKind::desync,
          fmt::format("lockstep mode: rank 0 is at step {}, rank {} at step {}; load the same state on all ranks",
                      first[kStep], rank, row[kStep]));
    }
    losses.push_back(std::bit_cast<double>(row[kLoss]));
    conflict = std::max(conflict, row[kConflict]);
    for (std::size_t i = 0; i < mine.hashes.size(); ++i) {
      if (row[kHashes + i] != first[kHashes + i]) conflict = std::max(conflict, static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < is_defined.size(); ++i) is_defined[i] = is_defined[i] || row[defined + i] != 0;
  }
  if (conflict >= 0) {
    throw refusal(fmt::format("shards have left different values in buffer {}, whose mean its type {} cannot hold",
                              counted_[static_cast<std::size_t>(conflict)].first,
                              c10::toString(counted_[static_cast<std::size_t>(conflict)].second.scalar_type())));
  }
  mine.loss = mean_of_tree(std::move(losses));
  for (std::size_t i = 0; i < is_defined.size(); ++i) {
    if (is_defined[i] && !mine.tensors[i].defined()) mine.tensors[i] = stand_in(i);
  }
}

at::Tensor ShardedStep::stand_in(std::size_t tensor) const {
  if (tensor >= parameters_.size()) return before_[tensor - parameters_.size()].clone();
  return at::full_like(parameters_[tensor].second, -0.0);  // the zero that leaves every other number as it is
}

void ShardedStep::restore_buffers() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!is_changed_[i]) continue;
    at::Tensor buffer = (i < averaged_.size() ? averaged_[i] : counted_[i - averaged_.size()]).second;
    buffer.copy_(before_[i]);
  }
}

bool ShardedStep::has_gradients() const {
  return std::ranges::any_of(parameters_, [](const auto& named) { return named.second.grad().defined(); });
}

void ShardedStep::drop_gradients() const {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad() = at::Tensor();
}

void ShardedStep::check_forward(bool is_training) const {
  if (is_running_ || !is_training) return;
  throw refusal(
      "a forward in training outside of for_each_shard(), so its gradients would stay on this rank; do it in "
      "the callback of for_each_shard(), or call eval() first");
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
    throw refusal(fmt::format("the state is of a run with {} shards and seed {}, this one has {} shards and seed {}",
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
        fmt::format("lockstep mode: the resumed run will not have the bits of the uninterrupted one, which had: {}",
                    fmt::join(changed, "; ")));
  }
  if (!knows_threads || !knows_arithmetic) {
    log_warning(
        fmt::format("lockstep mode: the state does not say {}{}{} the run so far computed, so it is not known "
                    "whether the resumed run has the bits of the uninterrupted one",
                    knows_threads ? "" : "with how many threads", knows_threads || knows_arithmetic ? "" : " and ",
                    knows_arithmetic ? "" : "with what kernels and settings"));
  }
}

}  // namespace lockstep
