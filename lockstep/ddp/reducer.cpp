#include "lockstep/ddp/reducer.h"

#include <algorithm>
#include <utility>

#include "lockstep/collective/arena_engine.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/diagnostics.h"
#include "lockstep/group/tensor_segments.h"

namespace lockstep {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25;
constexpr double kDefaultFirstMb = 1;

std::vector<std::vector<std::size_t>> plan(const NamedTensors& parameters, const DdpOptions& options) {
  std::vector<PlannedParameter> planned;
  for (const auto& [name, tensor] : parameters) {
    planned.push_back(
        {static_cast<std::size_t>(tensor.nbytes()), dtype_of(tensor, "DistributedDataParallel, parameter " + name)});
  }
  if (options.bucketing == Bucketing::off) return plan_buckets(planned, 0, 0);
  const double cap = options.bucket_cap_mb.value_or(kDefaultCapMb);
  const double first = options.bucket_cap_mb.value_or(kDefaultFirstMb);
  return plan_buckets(planned, static_cast<std::size_t>(first * kMiB), static_cast<std::size_t>(cap * kMiB));
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

std::shared_ptr<Reducer> Reducer::make(const NamedTensors& parameters, ProcessGroup group, const DdpOptions& options) {
  std::shared_ptr<Reducer> reducer(new Reducer(parameters, std::move(group), options));
  reducer->install_hooks();
  return reducer;
}

Reducer::Reducer(const NamedTensors& parameters, ProcessGroup group, const DdpOptions& options)
    : group_(std::move(group)), parameters_(parameters), bucket_of_(parameters.size()), ready_(parameters.size()) {
  for (const auto& indices : plan(parameters_, options)) {
    std::vector<at::Tensor> tensors;
    for (const std::size_t index : indices) {
      bucket_of_[index] = buckets_.size();
      tensors.push_back(parameters_[index].second);
    }
    buckets_.emplace_back("gradient bucket " + std::to_string(buckets_.size()), std::move(tensors));
  }
}

void Reducer::install_hooks() {
  hooks_.reserve(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    hooks_.emplace_back(parameters_[i].second, [weak = weak_from_this(), i] {
      if (const auto self = weak.lock()) self->gradient_ready(i);
    });
  }
}

void Reducer::prepare(bool synchronise) {
  // A backward that threw never reached its end.
  phase_ = Phase::idle;
  close_arena();
  synchronise_ = synchronise;
}

void Reducer::begin_backward() {
  if (phase_ == Phase::collecting) return;
  phase_ = Phase::collecting;
  open_arena();
  std::fill(ready_.begin(), ready_.end(), false);
  for (GradientBucket& bucket : buckets_) bucket.reset();
  launched_ = 0;
  at_end_of_backward([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->end_backward();
  });
}

void Reducer::gradient_ready(std::size_t parameter) {
  begin_backward();
  if (!synchronise_ || ready_[parameter]) return;
  check_gradient(parameter);
  ready_[parameter] = true;
  const bool complete = buckets_[bucket_of_[parameter]].add_ready();
  if (!complete && launched_ == 0) return;
  const Timed timed(stats_.communication_seconds);
  if (complete) launch_ready_buckets();
  if (launched_ != 0 && group_.shares_memory()) {
    group_.drive([](ArenaEngine& engine) { engine.poll(); });
  }
}

void Reducer::launch_ready_buckets() {
  for (; launched_ < buckets_.size() && buckets_[launched_].is_ready(); ++launched_) buckets_[launched_].launch(group_);
}

void Reducer::end_backward() {
  close_arena();
  if (phase_ != Phase::collecting) return;
  phase_ = Phase::idle;
  if (!synchronise_) return;
  check_all_ready();
  const Timed timed(stats_.communication_seconds);
  for (GradientBucket& bucket : buckets_) {
    bucket.finish(group_);
    stats_.copied_bytes += bucket.copied_bytes();
  }
  ++stats_.backwards;
  for (const auto& [name, tensor] : parameters_) stats_.reduced_bytes += tensor.nbytes();
}

void Reducer::check_all_ready() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!ready_[i]) missing.push_back(parameters_[i].first);
  }
  if (missing.empty()) return;
  const Error error = no_gradient_error(group_.rank(), missing);
  // Ranks that did use these parameters wait for this one: they get the same text.
  group_.abort(error.what());
  throw error;
}

void Reducer::check_gradient(std::size_t parameter) const {
  const auto& [name, tensor] = parameters_[parameter];
  const at::Tensor& gradient = tensor.grad();
  const char* problem = nullptr;
  if (!gradient.defined())
    problem = "is undefined";
  else if (gradient.layout() != at::kStrided)
    problem = "is sparse";
  else if (gradient.scalar_type() != tensor.scalar_type())
    problem = "has another dtype than the parameter";
  if (problem == nullptr) return;
  const Error error = unsupported_gradient_error(group_.rank(), name, problem);
  group_.abort(error.what());
  throw error;
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
