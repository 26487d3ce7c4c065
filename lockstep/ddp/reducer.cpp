#include "lockstep/ddp/reducer.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/ddp/diagnostics.h"
#include "lockstep/group/tensor_segments.h"

namespace lockstep {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25;
constexpr double kDefaultFirstMb = 1;

std::vector<std::size_t> caps_of(const DdpOptions& options) {
  if (options.bucketing == Bucketing::off) return {0};
  std::vector<double> mib = options.bucket_cap_mb_list;
  if (mib.empty() && options.bucket_cap_mb) mib = {*options.bucket_cap_mb};
  if (mib.empty()) mib = {kDefaultFirstMb, kDefaultCapMb};
  std::vector<std::size_t> bytes;
  for (const double cap : mib) bytes.push_back(static_cast<std::size_t>(cap * kMiB));
  return bytes;
}

std::vector<PlannedParameter> planned(const std::vector<TrainedParameter>& parameters) {
  std::vector<PlannedParameter> result;
  for (const auto& [name, tensor, sparse, delayed] : parameters) {
    result.push_back({.bytes = static_cast<std::size_t>(tensor.nbytes()),
                      .dtype = dtype_of(tensor, "DistributedDataParallel, parameter " + name),
                      .device = tensor.get_device(),
                      .sparse = sparse,
                      .delayed = delayed});
  }
  return result;
}

// Backward begins at the model's end.
std::vector<std::size_t> reversed_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

// Adds the time of a scope to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), start_(steady_clock().now()) {}
  ~Timed() { sum_ += seconds(steady_clock().now() - start_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& sum_;
  TimePoint start_;
};

}  // namespace

std::shared_ptr<Reducer> Reducer::make(std::vector<TrainedParameter> parameters, ProcessGroup group,
                                       const DdpOptions& options, std::shared_ptr<PrecisionSwap> swap) {
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(parameters), std::move(group), options, std::move(swap)));
  const auto weak = reducer->weak_from_this();
  reducer->on_begin_ = std::make_shared<const std::function<void()>>([weak] {
    if (const auto self = weak.lock()) self->begin_backward();
  });
  reducer->end_.emplace([weak] {
    if (const auto self = weak.lock()) self->end_backward();
  });
  reducer->install_hooks();
  return reducer;
}

Reducer::Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, const DdpOptions& options,
                 std::shared_ptr<PrecisionSwap> swap)
    : group_(std::move(group)),
      options_(options),
      parameters_(std::move(parameters)),
      swap_(std::move(swap)),
      planned_(planned(parameters_)),
      places_(parameters_.size()),
      fired_(parameters_.size()),
      used_(parameters_.size()),
      learning_(options.static_graph) {
  arrivals_.reserve(parameters_.size());
  for (const TrainedParameter& parameter : parameters_) parameter_bytes_ += parameter.tensor.nbytes();
  if (options_.find_unused_parameters && !options_.static_graph) {
    std::vector<at::Tensor> tensors;
    for (const TrainedParameter& parameter : parameters_) tensors.push_back(parameter.tensor);
    search_.emplace(std::move(tensors));
  }
  form_buckets(reversed_order(parameters_.size()));
}

void Reducer::form_buckets(const std::vector<std::size_t>& order) {
  buckets_.clear();
  for (const auto& indices : plan_buckets(planned_, order, caps_of(options_))) {
    std::vector<BucketMember> members;
    for (const std::size_t index : indices) {
      places_[index] = {buckets_.size(), members.size()};
      members.push_back({.index = index, .name = parameters_[index].name, .parameter = parameters_[index].tensor});
    }
    buckets_.push_back(make_bucket(buckets_.size(), std::move(members)));
  }
}

std::unique_ptr<GradientBucket> Reducer::make_bucket(std::size_t index, std::vector<BucketMember> members) const {
  if (planned_[members.front().index].sparse) return make_sparse_bucket(index, std::move(members));
  const MixedPrecision& mixed = options_.mixed_precision;
  const auto dtype = mixed.reduce_dtype ? mixed.reduce_dtype : mixed.param_dtype;
  const bool changes_dtype = dtype && members.front().parameter.is_floating_point();
  if (!hook_ && !changes_dtype) return make_in_place_bucket(index, std::move(members));
  return make_flat_bucket(index, std::move(members), hook_, changes_dtype ? dtype : std::nullopt);
}

void Reducer::install_hooks() {
  hooks_.clear();
  scales_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.emplace_back(parameters_[i].tensor, [weak = weak_from_this(), i] {
      if (const auto self = weak.lock()) self->gradient_ready(i);
    });
    if (options_.weighting != Weighting::samples) continue;
    scales_.emplace_back(parameters_[i].tensor, [weak = weak_from_this()] {
      const auto self = weak.lock();
      return self == nullptr ? 1.0 : self->note_.weight / self->unit_weight_.value_or(self->note_.weight);
    });
  }
  if (search_) search_->find_accumulators();
}

void Reducer::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  form_buckets(reversed_order(parameters_.size()));
}

void Reducer::prepare(const ForwardNote& note) {
  // A backward that threw never reached its end.
  phase_ = Phase::idle;
  close_arena();
  note_ = note;
  if (options_.weighting == Weighting::samples && !unit_weight_) {
    const at::Tensor weight = at::tensor({note.weight}, at::kDouble);
    group_.broadcast(weight, 0, {.name = "unit of weight"});
    unit_weight_ = weight.item<double>() == 0 ? 1 : weight.item<double>();
  }
  // One more forward before the backward computes with the same copies, so that the first one's graph stays watched.
  if (swap_ != nullptr && !swap_->is_lowered()) {
    swap_->lower();
    install_hooks();
  }
  if (search_) search_->begin_forward();
}

void Reducer::watch(const at::Tensor& output) {
  if (search_) search_->from(output);
  when_backward_reaches(output, on_begin_);
}

void Reducer::begin_backward() {
  if (phase_ == Phase::collecting) return;
  phase_ = Phase::collecting;
  open_arena();
  std::fill(fired_.begin(), fired_.end(), 0);
  for (const auto& bucket : buckets_) bucket->reset();
  launched_ = 0;
  if (!rebuilt_) arrivals_.clear();
  end_->await();
  if (options_.weighting == Weighting::samples) {
    if (!note_.silent) weight_ += note_.weight / unit_weight_.value();
  } else {
    weight_ = note_.silent ? 0 : 1;
  }
  if (note_.synchronise) begin_synchronised();
}

// Parameters for which no gradient will come are ready from the beginning.
void Reducer::begin_synchronised() {
  if (learning_) return;
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (expected_[i] == 0) set_ready(i, false);
  }
  if (!search_) return;
  const std::vector<bool>& found = search_->found();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) set_ready(i, false);
  }
  if (options_.skip_all_reduce_unused_params) {
    report_.weight = 0;
    report_.non_finite.reset();
    report_.used = found;
    if (note_.silent) report_.used.assign(found.size(), false);
    reached_ = reports_.exchange(report_, group_).used;
  }
}

void Reducer::set_ready(std::size_t parameter, bool fired) {
  bucket_of(parameter).set_ready(places_[parameter].member, fired);
}

void Reducer::gradient_ready(std::size_t parameter) {
  begin_backward();
  used_[parameter] = true;
  if (!note_.synchronise) return;
  const int count = ++fired_[parameter];
  if (count == 1 && !rebuilt_) arrivals_.push_back(parameter);
  if (learning_) return;
  const std::string& name = parameters_[parameter].name;
  GradientBucket& bucket = bucket_of(parameter);
  if (options_.static_graph) {
    if (count < expected_[parameter]) return;
    if (count > expected_[parameter]) fail(graph_changed_error(group_.rank(), name, count, expected_[parameter]));
  } else if (bucket.is_launched()) {
    fail(late_gradient_error(group_.rank(), name, count == 1));
  }
  check_gradient(parameter);
  set_ready(parameter, true);
  const bool complete = bucket.is_ready();
  if (!complete && launched_ == 0) return;
  const Timed timed(stats_.communication_seconds);
  if (complete) launch_ready_buckets();
  if (launched_ != 0 && group_.shares_memory()) {
    group_.drive([](ArenaEngine& engine) { engine.poll(); });
  }
}

bool Reducer::is_skipped(const GradientBucket& bucket) const {
  if (reached_.empty()) return false;
  return std::none_of(bucket.members().begin(), bucket.members().end(),
                      [&](const BucketMember& member) { return reached_[member.index]; });
}

// A hook may throw on this rank only; the others would wait for its part.
template <class Call>
void Reducer::or_fail_everywhere(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    group_.abort(error.what());
    throw;
  }
}

void Reducer::launch_ready_buckets() {
  std::size_t last = buckets_.size() - 1;
  while (last > 0 && is_skipped(*buckets_[last])) --last;
  for (; launched_ < buckets_.size() && buckets_[launched_]->is_ready(); ++launched_) {
    if (is_skipped(*buckets_[launched_])) continue;
    or_fail_everywhere([&] {
      buckets_[launched_]->launch({.group = group_,
                                   .is_last = launched_ == last,
                                   .silent = note_.silent,
                                   .look_for_non_finite = options_.non_finite != NonFinite::ignore});
    });
  }
}

void Reducer::end_backward() {
  close_arena();
  if (phase_ != Phase::collecting) return;
  phase_ = Phase::idle;
  if (swap_ != nullptr) {
    swap_->restore();
    install_hooks();
  }
  if (!note_.synchronise) return;
  const Timed timed(stats_.communication_seconds);
  complete_buckets();
  const JointReport* joint = exchange_reports();
  finish_buckets(joint);
  for (const auto& bucket : buckets_) stats_.copied_bytes += bucket->copied_bytes();
  learn(joint);
  stats_.reduced_bytes += parameter_bytes_;
  ++stats_.backwards;
  std::fill(used_.begin(), used_.end(), false);
  weight_ = 0;
  reached_.clear();
  if (search_) search_->forget();
  if (joint != nullptr && !joint->non_finite.empty()) drop_gradients(*joint);
}

// Backward has given all the gradients that it will give.
void Reducer::complete_buckets() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Place& place = places_[i];
    if (buckets_[place.bucket]->members()[place.member].is_ready) continue;
    if (learning_) {
      if (fired_[i] != 0) check_gradient(i);
    } else if (options_.static_graph) {
      fail(graph_changed_error(group_.rank(), parameters_[i].name, fired_[i], expected_[i]));
    } else if (!options_.find_unused_parameters) {
      missing.push_back(parameters_[i].name);
      continue;
    }
    set_ready(i, fired_[i] != 0);
  }
  // Ranks that did use these parameters wait for this one: they get the same text.
  if (!missing.empty()) fail(no_gradient_error(group_.rank(), missing));
  launch_ready_buckets();
}

const JointReport* Reducer::exchange_reports() {
  const bool asks_use = learning_ || (options_.find_unused_parameters && !options_.static_graph && reached_.empty());
  const bool asks_weight = options_.weighting == Weighting::samples || note_.over_active;
  if (!asks_use && !asks_weight && options_.non_finite == NonFinite::ignore) return nullptr;
  report_.weight = weight_;
  report_.non_finite.reset();
  report_.used.clear();
  if (asks_use) report_.used = used_;
  if (note_.silent) report_.used.assign(report_.used.size(), false);
  for (const auto& bucket : buckets_) {
    if (!report_.non_finite && bucket->is_launched()) report_.non_finite = bucket->non_finite();
  }
  return &reports_.exchange(report_, group_);
}

void Reducer::finish_buckets(const JointReport* joint) {
  Finish finish{.group = group_};
  if (joint != nullptr && !joint->used.empty()) finish.used = &joint->used;
  if (!reached_.empty()) finish.used = &reached_;
  if (!ever_used_.empty()) finish.used = &ever_used_;
  const bool weighted = options_.weighting == Weighting::samples || note_.over_active;
  if (weighted && joint->weight > 0) finish.factor = group_.size() / joint->weight;
  for (const auto& bucket : buckets_) {
    if (bucket->is_launched()) or_fail_everywhere([&] { bucket->finish(finish); });
  }
}

// What the first synchronised backward has shown.
void Reducer::learn(const JointReport* joint) {
  if (std::exchange(learning_, false)) {
    expected_ = fired_;
    ever_used_ = joint->used;
  }
  if (std::exchange(rebuilt_, true) || (options_.find_unused_parameters && !options_.static_graph)) return;
  std::vector<bool> arrived(parameters_.size());
  for (const std::size_t i : arrivals_) arrived[i] = true;
  for (const std::size_t i : reversed_order(parameters_.size())) {
    if (!arrived[i]) arrivals_.push_back(i);
  }
  const at::Tensor order = at::tensor(std::vector<std::int64_t>(arrivals_.begin(), arrivals_.end()), at::kLong);
  group_.broadcast(order, 0, {.name = "order of gradients"});
  const auto* first = order.const_data_ptr<std::int64_t>();
  form_buckets(std::vector<std::size_t>(first, first + order.numel()));
}

void Reducer::drop_gradients(const JointReport& joint) {
  for (const TrainedParameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  ++stats_.skipped_steps;
  std::vector<std::pair<int, std::string>> where;
  for (const auto& [rank, index] : joint.non_finite) where.emplace_back(rank, parameters_[index].name);
  const Error error = non_finite_error(group_.rank(), where);
  if (options_.non_finite == NonFinite::fail) throw error;
  if (group_.rank() == 0) log_warning(error.what());
}

void Reducer::check_gradient(std::size_t parameter) {
  const TrainedParameter& one = parameters_[parameter];
  const at::Tensor& gradient = one.tensor.grad();
  const char* problem = nullptr;
  if (!gradient.defined()) {
    problem = "is undefined";
  } else if ((gradient.layout() != at::kStrided) != one.sparse) {
    problem = one.sparse ? "is dense, though its module was made for sparse ones"
                         : "is sparse, though no module was made for that";
  } else if (gradient.scalar_type() != one.tensor.scalar_type() && swap_ == nullptr) {
    problem = "has another dtype than the parameter";
  }
  if (problem != nullptr) fail(unsupported_gradient_error(group_.rank(), one.name, problem));
}

void Reducer::fail(const Error& error) {
  group_.abort(error.what());
  throw error;
}

std::vector<std::size_t> Reducer::bucket_bytes() const {
  std::vector<std::size_t> bytes;
  for (const auto& bucket : buckets_) bytes.push_back(bucket->bytes());
  return bytes;
}

std::shared_ptr<ArenaHeap> Reducer::heap() const {
  std::shared_ptr<ArenaHeap> heap;
  if (group_.shares_memory()) group_.drive([&](ArenaEngine& engine) { heap = engine.arena().heap(); });
  return heap;
}

void Reducer::open_arena() {
  if (arena_scope_) return;
  arena_scope_.emplace(heap());
  arena_thread_ = std::this_thread::get_id();
}

void Reducer::close_arena() {
  // The switch is the thread's own: only the thread that turned it on can turn it off.
  if (arena_scope_ && arena_thread_ == std::this_thread::get_id()) arena_scope_.reset();
}

}  // namespace lockstep
