#include "lockstep/train/ddp/comm_hooks/power_sgd.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/train/ddp/checks/all_finite.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"
#include "lockstep/train/ddp/comm_hooks/low_rank.h"
#include "lockstep/train/ddp/comm_hooks/power_sgd_state.h"

namespace lockstep {

using namespace internal;

namespace {

void check(const PowerSgdOptions& options) {
  const auto refuse = [](const std::string& text) { throw Error(ErrorKind::invalid_argument, "PowerSgd: " + text); };
  if (options.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank is " + std::to_string(options.matrix_approximation_rank) + "; give 1 or more");
  }
  if ((options.use_error_feedback || options.warm_start) && options.start_power_sgd_iter <= 1) {
    refuse("start_power_sgd_iter is " + std::to_string(options.start_power_sgd_iter) +
           "; with use_error_feedback or warm_start it must be 2 or more, since buckets may change after the first "
           "iteration");
  }
  if (!(options.min_compression_rate > 0)) {
    refuse("min_compression_rate is " + std::to_string(options.min_compression_rate) + "; give a positive number");
  }
  if (!(options.orthogonalization_epsilon >= 0)) {
    refuse("orthogonalization_epsilon is " + std::to_string(options.orthogonalization_epsilon) +
           "; give 0 or a small positive number");
  }
}

// The tensor remembered under one name: elements of a job's gradients.
struct Part {
  std::string name;
  std::int64_t first, count;
};

struct SameShape {
  std::vector<std::string> names;
  std::vector<at::Tensor> matrices;
};

// A bucket on its way.
struct Job {
  std::size_t bucket;
  bool is_last;
  std::uint64_t backward;
  std::string name_p;  // of its calls
  std::string name_q;
  std::int64_t gradient_elements;
  at::Tensor gradients;      // plus the earlier errors; overwritten by the result
  at::Tensor intended = {};  // a copy of the former, with error feedback
  std::vector<Part> parts = {};
  std::vector<SameShape> same_shape = {};            // parts of gradients, 2-d, which are compressed
  std::vector<at::Tensor> uncompressed = {};         // the other parts
  std::vector<at::Tensor> batches = {};              // [batch, n, m], of same_shape
  std::vector<std::vector<std::string>> names = {};  // of the matrices in each batch
  std::optional<LowRank> low_rank = {};
  Work work = {};
};

// Of such a bucket, only the drawn random numbers are remembered.
std::string name_without_matrices(const Job& job) { return "bucket " + std::to_string(job.bucket); }

at::Tensor as_matrix(const at::Tensor& gradient) {
  if (gradient.dim() == 0 || gradient.numel() == 0) return gradient.reshape({gradient.numel(), 1});
  return gradient.view({gradient.size(0), -1});
}

}  // namespace

class PowerSgd::Compressor : public std::enable_shared_from_this<Compressor> {
 public:
  explicit Compressor(const PowerSgdOptions& options) : options_(options), state_(options.random_seed) {
    check(options_);
    options_.compression_stats_logging_frequency =
        std::max<std::int64_t>(1, options.compression_stats_logging_frequency);
  }

  BucketResult layer_by_layer(GradBucket& bucket, const ProcessGroup& group);
  BucketResult as_square(GradBucket& bucket, const ProcessGroup& group);

  PowerSgdState& state() { return state_; }

 private:
  void require_one_model(const GradBucket& bucket);
  std::optional<BucketResult> plain_at_first(GradBucket& bucket, const ProcessGroup& group);
  void begin_step(std::size_t bucket);
  Job new_job(const GradBucket& bucket, const at::Tensor& gradients, std::vector<Part> parts);
  void sort(Job& job, const std::vector<at::Tensor>& gradients);
  BucketResult begin(Job job, const ProcessGroup& group);
  void prepare_q(const Job& job);
  at::Tensor finish(const Job& job, const ProcessGroup& group);
  void remember(const Job& job);
  void report(const Job& job, const ProcessGroup& group);

  // The memory of a step, once all of its buckets have arrived and are finite. A step that a failed backward
  // interrupts, or that is dropped for its values, leaves the memory unchanged.
  struct Step {
    std::optional<std::size_t> bucket;  // the last one begun
    PowerSgdState::Memory errors, qs;
    bool is_finite = true;
  };

  PowerSgdOptions options_;
  PowerSgdState state_;
  Step step_;
  std::uint64_t wrapper_ = 0;  // the one it serves; 0: none yet
};

void PowerSgd::Compressor::require_one_model(const GradBucket& bucket) {
  if (wrapper_ == 0) wrapper_ = bucket.wrapper();
  if (wrapper_ == bucket.wrapper()) return;
  throw Error(ErrorKind::invalid_argument,
              "this PowerSgd already belongs to another DistributedDataParallel; make a separate one for each wrapper, "
              "and copy a state to it with load_state()");
}

std::optional<BucketResult> PowerSgd::Compressor::plain_at_first(GradBucket& bucket, const ProcessGroup& group) {
  require_real(bucket, "PowerSgd");
  if (options_.use_error_feedback) require_unweighted(bucket, "PowerSgd with error feedback");
  require_one_model(bucket);
  state_.note_ranks(group, options_.use_error_feedback);
  if (state_.counters.iteration >= options_.start_power_sgd_iter) return {};
  if (bucket.is_last()) ++state_.counters.iteration;
  return all_reduce_hook()(bucket, group);
}

BucketResult PowerSgd::Compressor::layer_by_layer(GradBucket& bucket, const ProcessGroup& group) {
  if (auto plain = plain_at_first(bucket, group)) return *plain;
  std::vector<Part> parts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < bucket.names().size(); ++i) {
    const std::int64_t count = bucket.parameters()[i].numel();
    parts.push_back({bucket.names()[i], first, count});
    first += count;
  }
  Job job = new_job(bucket, bucket.buffer(), std::move(parts));
  sort(job, bucket.gradients());
  return begin(std::move(job), group);
}

BucketResult PowerSgd::Compressor::as_square(GradBucket& bucket, const ProcessGroup& group) {
  if (auto plain = plain_at_first(bucket, group)) return *plain;
  const at::Tensor buffer = bucket.buffer();
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(buffer.numel()))));
  const at::Tensor padded = at::zeros({side * side}, buffer.options());
  padded.narrow(0, 0, buffer.numel()).copy_(buffer);
  const std::string name = fmt::format("{}", fmt::join(bucket.names(), ","));
  Job job = new_job(bucket, padded, {{name, 0, side * side}});
  job.same_shape = {{{name}, {padded.view({side, side})}}};
  state_.counters.elements_before += buffer.numel();
  state_.counters.elements_after += 2 * side * options_.matrix_approximation_rank;
  return begin(std::move(job), group);
}

// Buckets come in their order.
void PowerSgd::Compressor::begin_step(std::size_t bucket) {
  if (step_.bucket && bucket <= *step_.bucket) step_ = {};
  step_.bucket = bucket;
}

Job PowerSgd::Compressor::new_job(const GradBucket& bucket, const at::Tensor& gradients, std::vector<Part> parts) {
  begin_step(bucket.index());
  Job job{.bucket = bucket.index(),
          .is_last = bucket.is_last(),
          .backward = bucket.backward(),
          .name_p = bucket.call_name("P"),
          .name_q = bucket.call_name("Q"),
          .gradient_elements = bucket.buffer().numel(),
          .gradients = gradients,
          .parts = std::move(parts)};
  if (!options_.use_error_feedback) return job;
  for (const auto& [name, first, count] : job.parts) {
    const at::Tensor part = gradients.narrow(0, first, count);
    if (state_.errors.contains(name)) part.add_(PowerSgdState::remembered(state_.errors, name, part, "error"));
  }
  job.intended = gradients.clone();
  return job;
}

// Matrices of one shape are grouped, in the order in which shapes first occur: that is the order of random numbers.
void PowerSgd::Compressor::sort(Job& job, const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    const std::string& name = job.parts[i].name;
    const at::Tensor matrix = as_matrix(gradient);
    const std::int64_t n = matrix.size(0), m = matrix.size(1);
    const std::int64_t compressed = (n + m) * std::min({n, m, options_.matrix_approximation_rank});
    state_.counters.elements_before += n * m;
    const bool worth_it = static_cast<double>(compressed) * options_.min_compression_rate < static_cast<double>(n * m);
    state_.counters.elements_after += worth_it ? compressed : n * m;
    if (!worth_it) {
      job.uncompressed.push_back(gradient);
      continue;
    }
    auto same = std::find_if(job.same_shape.begin(), job.same_shape.end(), [&](const SameShape& others) {
      return others.matrices.front().sizes() == matrix.sizes();
    });
    if (same == job.same_shape.end()) same = job.same_shape.emplace(job.same_shape.end());
    same->names.push_back(name);
    same->matrices.push_back(matrix);
  }
}

BucketResult PowerSgd::Compressor::begin(Job job, const ProcessGroup& group) {
  report(job, group);
  for (const auto& [names, matrices] : job.same_shape) {
    if (options_.batch_tensors_with_same_shape && matrices.size() > 1) {
      job.batches.push_back(at::stack(matrices));
      job.names.push_back(names);
      continue;
    }
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      job.batches.push_back(matrices[i].unsqueeze(0));
      job.names.push_back({names[i]});
    }
  }
  job.low_rank.emplace(job.batches, options_.matrix_approximation_rank);
  prepare_q(job);
  job.low_rank->compute_p();
  std::vector<at::Tensor> tensors = job.uncompressed;
  if (!job.batches.empty()) tensors.push_back(job.low_rank->p());
  job.work = group.all_reduce_async(tensors, ReduceOp::avg, {.name = job.name_p, .number = job.backward});
  return [self = shared_from_this(), job = std::move(job), group] { return self->finish(job, group); };
}

void PowerSgd::Compressor::prepare_q(const Job& job) {
  const LowRank& low_rank = *job.low_rank;
  // A column from a gradient of zeros is zero, and would remain so.
  const auto knows = [&](const std::string& name) {
    const auto q = state_.qs.find(name);
    return q != state_.qs.end() && (q->second.dim() != 2 || q->second.any(0).all().item<bool>());
  };
  const auto knows_all = [&](const auto& names) { return std::ranges::all_of(names, knows); };
  const bool knows_it =
      job.names.empty() ? knows(name_without_matrices(job)) : std::ranges::all_of(job.names, knows_all);
  if (!knows_it) low_rank.draw_q(state_.next_seed());
  for (std::size_t i = 0; i < job.names.size(); ++i) {
    for (std::size_t j = 0; j < job.names[i].size(); ++j) {
      const at::Tensor q = low_rank.q_of(i)[static_cast<std::int64_t>(j)];
      if (knows(job.names[i][j])) q.copy_(PowerSgdState::remembered(state_.qs, job.names[i][j], q, "Q"));
    }
  }
  low_rank.orthogonalize_q(options_.orthogonalization_epsilon);
}

at::Tensor PowerSgd::Compressor::finish(const Job& job, const ProcessGroup& group) {
  job.work.wait();
  const LowRank& low_rank = *job.low_rank;
  if (!job.batches.empty()) {
    // P is the mean where the epsilon is meant for the sum; the mean does not overflow.
    low_rank.orthogonalize_p(options_.orthogonalization_epsilon / group.size());
    low_rank.compute_q();
    group.all_reduce(low_rank.q(), ReduceOp::avg, {.name = job.name_q, .number = job.backward});
    low_rank.compute_matrices();
  }
  if (options_.batch_tensors_with_same_shape) {
    for (std::size_t i = 0; i < job.batches.size(); ++i) {
      const auto& matrices = job.same_shape[i].matrices;
      for (std::size_t j = 0; matrices.size() > 1 && j < matrices.size(); ++j) {
        matrices[j].copy_(job.batches[i][static_cast<std::int64_t>(j)]);
      }
    }
  }
  remember(job);
  if (job.is_last) ++state_.counters.iteration;
  return job.gradients.narrow(0, 0, job.gradient_elements);
}

// The result is the same on all ranks, so all of them remember it, or none.
void PowerSgd::Compressor::remember(const Job& job) {
  step_.is_finite = step_.is_finite && all_finite(job.gradients);
  if (options_.use_error_feedback) {
    const at::Tensor error = job.intended.sub_(job.gradients);
    for (const auto& [name, first, count] : job.parts) step_.errors[name] = error.narrow(0, first, count);
  }
  for (std::size_t i = 0; options_.warm_start && i < job.names.size(); ++i) {
    for (std::size_t j = 0; j < job.names[i].size(); ++j) {
      step_.qs[job.names[i][j]] = job.low_rank->q_of(i)[static_cast<std::int64_t>(j)];
    }
  }
  if (options_.warm_start && job.names.empty()) step_.qs[name_without_matrices(job)] = job.low_rank->q();
  if (!job.is_last) return;
  const Step step = std::exchange(step_, {});
  if (!step.is_finite) return;
  for (const auto& [name, error] : step.errors) state_.errors[name] = error;
  for (const auto& [name, q] : step.qs) state_.qs[name] = q;
}

void PowerSgd::Compressor::report(const Job& job, const ProcessGroup& group) {
  if (!job.is_last || state_.counters.iteration < state_.counters.next_report) return;
  state_.counters.next_report = state_.counters.iteration + options_.compression_stats_logging_frequency;
  if (group.rank() != 0) return;
  const CompressionStats stats{state_.counters.elements_before, state_.counters.elements_after};
  log_info("PowerSgd: iteration " + std::to_string(state_.counters.iteration) + ": " +
           std::to_string(stats.elements_before) + " gradient elements so far, sent as " +
           std::to_string(stats.elements_after) + " elements: compression rate " + std::to_string(stats.rate()));
}

PowerSgd::PowerSgd(const PowerSgdOptions& options) : compressor_(std::make_shared<Compressor>(options)) {}

CommHook PowerSgd::hook() const {
  return [compressor = compressor_](GradBucket& bucket, const ProcessGroup& group) {
    return compressor->layer_by_layer(bucket, group);
  };
}

CommHook PowerSgd::batched_hook() const {
  return [compressor = compressor_](GradBucket& bucket, const ProcessGroup& group) {
    return compressor->as_square(bucket, group);
  };
}

CompressionStats PowerSgd::compression_stats() const {
  return {compressor_->state().counters.elements_before, compressor_->state().counters.elements_after};
}

std::map<std::string, at::Tensor> PowerSgd::state(std::string_view prefix) const {
  return compressor_->state().tensors(std::string(prefix));
}

void PowerSgd::load_state(const std::map<std::string, at::Tensor>& tensors, std::string_view prefix) {
  compressor_->state().load(tensors, std::string(prefix));
}

}  // namespace lockstep
