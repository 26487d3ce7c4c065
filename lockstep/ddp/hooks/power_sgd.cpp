#include "lockstep/ddp/hooks/power_sgd.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/ddp/hooks/default_hooks.h"
#include "lockstep/ddp/hooks/hook_input.h"
#include "lockstep/ddp/hooks/low_rank.h"

namespace lockstep {
namespace {

using BucketTensors = std::map<std::size_t, at::Tensor>;

void check(const PowerSgdOptions& options) {
  const auto refuse = [](const std::string& text) { throw Error(ErrorKind::invalid_argument, "PowerSgd: " + text); };
  if (options.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank is " + std::to_string(options.matrix_approximation_rank) +
           "; a matrix is approximated by one of rank 1 or more");
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

// What is kept of an iteration, by the names of state().
struct Counters {
  std::int64_t iteration = 0, random_draws = 0, next_report = 0, elements_before = 0, elements_after = 0;
};

constexpr std::pair<const char*, std::int64_t Counters::*> kCounters[] = {
    {"iteration", &Counters::iteration},
    {"random_draws", &Counters::random_draws},
    {"next_report", &Counters::next_report},
    {"elements_before", &Counters::elements_before},
    {"elements_after", &Counters::elements_after}};

// A bucket on its way.
struct Job {
  std::size_t bucket;
  bool is_last;
  std::uint64_t backward;
  std::string name_p;  // of its calls
  std::string name_q;
  std::int64_t gradient_elements;
  at::Tensor gradients;                                  // with what was lost before; what arrives overwrites it
  at::Tensor intended = {};                              // a copy of the former, with error feedback
  std::vector<std::vector<at::Tensor>> same_shape = {};  // parts of gradients, 2-d, which are compressed
  std::vector<at::Tensor> uncompressed = {};             // the other parts
  std::vector<at::Tensor> batches = {};                  // [batch, n, m], of same_shape
  std::optional<LowRank> low_rank = {};
  Work work = {};
};

at::Tensor as_matrix(const at::Tensor& gradient) {
  if (gradient.dim() == 0 || gradient.numel() == 0) return gradient.reshape({gradient.numel(), 1});
  return gradient.view({gradient.size(0), -1});
}

std::optional<std::size_t> bucket_in(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return {};
  name.remove_prefix(kind.size());
  std::size_t bucket = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), bucket);
  if (error != std::errc() || end != name.data() + name.size()) return {};
  return bucket;
}

}  // namespace

class PowerSgd::Memory : public std::enable_shared_from_this<Memory> {
 public:
  explicit Memory(const PowerSgdOptions& options) : options_(options), random_(options.random_seed) {
    check(options_);
    options_.compression_stats_logging_frequency =
        std::max<std::int64_t>(1, options.compression_stats_logging_frequency);
  }

  BucketResult layer_by_layer(GradBucket& bucket, const ProcessGroup& group);
  BucketResult as_square(GradBucket& bucket, const ProcessGroup& group);

  const Counters& counters() const { return counters_; }
  std::map<std::string, at::Tensor> state(const std::string& prefix) const;
  void load_state(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix);

 private:
  std::optional<BucketResult> plain_at_first(GradBucket& bucket, const ProcessGroup& group);
  void add_error(Job& job) const;
  void sort(Job& job, const std::vector<at::Tensor>& gradients);
  BucketResult begin(Job job, const ProcessGroup& group);
  void prepare_q(const Job& job);
  at::Tensor finish(const Job& job, const ProcessGroup& group);
  at::Tensor remembered(const BucketTensors& memory, const Job& job, const at::Tensor& like, const char* what) const;
  std::uint64_t next_seed();
  void report(const Job& job, const ProcessGroup& group);

  PowerSgdOptions options_;
  std::mt19937 random_;
  Counters counters_;
  BucketTensors errors_;  // that this rank's gradients still lack
  BucketTensors qs_;      // with warm start
};

std::optional<BucketResult> PowerSgd::Memory::plain_at_first(GradBucket& bucket, const ProcessGroup& group) {
  require_real(bucket, "PowerSgd");
  if (counters_.iteration >= options_.start_power_sgd_iter) return {};
  if (bucket.is_last()) ++counters_.iteration;
  return all_reduce_hook()(bucket, group);
}

BucketResult PowerSgd::Memory::layer_by_layer(GradBucket& bucket, const ProcessGroup& group) {
  if (auto plain = plain_at_first(bucket, group)) return *plain;
  Job job{.bucket = bucket.index(),
          .is_last = bucket.is_last(),
          .backward = bucket.backward(),
          .name_p = name_of(bucket, "P"),
          .name_q = name_of(bucket, "Q"),
          .gradient_elements = bucket.buffer().numel(),
          .gradients = bucket.buffer()};
  add_error(job);
  sort(job, bucket.gradients());
  return begin(std::move(job), group);
}

BucketResult PowerSgd::Memory::as_square(GradBucket& bucket, const ProcessGroup& group) {
  if (auto plain = plain_at_first(bucket, group)) return *plain;
  const at::Tensor buffer = bucket.buffer();
  const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(buffer.numel()))));
  const at::Tensor padded = at::zeros({side * side}, buffer.options());
  padded.narrow(0, 0, buffer.numel()).copy_(buffer);
  Job job{.bucket = bucket.index(),
          .is_last = bucket.is_last(),
          .backward = bucket.backward(),
          .name_p = name_of(bucket, "P"),
          .name_q = name_of(bucket, "Q"),
          .gradient_elements = buffer.numel(),
          .gradients = padded};
  add_error(job);
  job.same_shape = {{padded.view({side, side})}};
  counters_.elements_before += buffer.numel();
  counters_.elements_after += 2 * side * options_.matrix_approximation_rank;
  return begin(std::move(job), group);
}

void PowerSgd::Memory::add_error(Job& job) const {
  if (!options_.use_error_feedback) return;
  if (errors_.contains(job.bucket)) job.gradients.add_(remembered(errors_, job, job.gradients, "error"));
  job.intended = job.gradients.clone();
}

// Matrices of one shape come together, in the order in which shapes first occur: that is the order of random numbers.
void PowerSgd::Memory::sort(Job& job, const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor matrix = as_matrix(gradient);
    const std::int64_t n = matrix.size(0), m = matrix.size(1);
    const std::int64_t compressed = (n + m) * std::min({n, m, options_.matrix_approximation_rank});
    counters_.elements_before += n * m;
    const bool worth_it = static_cast<double>(compressed) * options_.min_compression_rate < static_cast<double>(n * m);
    counters_.elements_after += worth_it ? compressed : n * m;
    if (!worth_it) {
      job.uncompressed.push_back(gradient);
      continue;
    }
    const auto same = std::find_if(job.same_shape.begin(), job.same_shape.end(),
                                   [&](const auto& others) { return others.front().sizes() == matrix.sizes(); });
    if (same == job.same_shape.end()) {
      job.same_shape.push_back({matrix});
    } else {
      same->push_back(matrix);
    }
  }
}

BucketResult PowerSgd::Memory::begin(Job job, const ProcessGroup& group) {
  report(job, group);
  for (const auto& matrices : job.same_shape) {
    if (options_.batch_tensors_with_same_shape && matrices.size() > 1) {
      job.batches.push_back(at::stack(matrices));
    } else {
      for (const at::Tensor& matrix : matrices) job.batches.push_back(matrix.unsqueeze(0));
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

void PowerSgd::Memory::prepare_q(const Job& job) {
  const LowRank& low_rank = *job.low_rank;
  if (qs_.contains(job.bucket)) {
    low_rank.q().copy_(remembered(qs_, job, low_rank.q(), "Q"));
  } else {
    low_rank.draw_q(next_seed());
  }
  low_rank.orthogonalize_q(options_.orthogonalization_epsilon);
}

at::Tensor PowerSgd::Memory::finish(const Job& job, const ProcessGroup& group) {
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
      const auto& matrices = job.same_shape[i];
      for (std::size_t j = 0; matrices.size() > 1 && j < matrices.size(); ++j) {
        matrices[j].copy_(job.batches[i][static_cast<std::int64_t>(j)]);
      }
    }
  }
  if (options_.use_error_feedback) errors_[job.bucket] = job.intended.sub_(job.gradients);
  if (options_.warm_start) qs_[job.bucket] = low_rank.q();
  if (job.is_last) ++counters_.iteration;
  return job.gradients.narrow(0, 0, job.gradient_elements);
}

at::Tensor PowerSgd::Memory::remembered(const BucketTensors& memory, const Job& job, const at::Tensor& like,
                                        const char* what) const {
  const at::Tensor& tensor = memory.at(job.bucket);
  if (tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type()) return tensor.to(like.device());
  const auto text_of = [](const at::Tensor& t) {
    return std::to_string(t.numel()) + " elements of type " + c10::toString(t.scalar_type());
  };
  throw Error(ErrorKind::invalid_argument,
              "PowerSgd remembers " + text_of(tensor) + " as " + what + " of bucket " + std::to_string(job.bucket) +
                  ", which now takes " + text_of(like) +
                  ": the model, its buckets, or the options are not those that the memory is from; use a new PowerSgd");
}

// What numpy.random.RandomState(random_seed).randint(1'000'000'000) gives, which PyTorch takes for this.
std::uint64_t PowerSgd::Memory::next_seed() {
  constexpr std::uint32_t kMask = (1U << 30) - 1, kEnd = 1'000'000'000;
  for (;;) {
    ++counters_.random_draws;
    const auto value = static_cast<std::uint32_t>(random_()) & kMask;
    if (value < kEnd) return value;
  }
}

void PowerSgd::Memory::report(const Job& job, const ProcessGroup& group) {
  if (!job.is_last || counters_.iteration < counters_.next_report) return;
  counters_.next_report = counters_.iteration + options_.compression_stats_logging_frequency;
  if (group.rank() != 0) return;
  const CompressionStats stats{counters_.elements_before, counters_.elements_after};
  log_info("PowerSgd: iteration " + std::to_string(counters_.iteration) + ": " + std::to_string(stats.elements_before) +
           " gradients so far, sent as " + std::to_string(stats.elements_after) + " numbers: a rate of " +
           std::to_string(stats.rate()));
}

std::map<std::string, at::Tensor> PowerSgd::Memory::state(const std::string& prefix) const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, counter] : kCounters)
    tensors[prefix + name] = at::scalar_tensor(counters_.*counter, at::kLong);
  for (const auto& [bucket, error] : errors_) tensors[prefix + "error." + std::to_string(bucket)] = error.clone();
  for (const auto& [bucket, q] : qs_) tensors[prefix + "q." + std::to_string(bucket)] = q.clone();
  return tensors;
}

void PowerSgd::Memory::load_state(const std::map<std::string, at::Tensor>& tensors, const std::string& prefix) {
  Counters counters;
  std::size_t counters_found = 0;
  BucketTensors errors, qs;
  for (auto entry = tensors.lower_bound(prefix); entry != tensors.end() && entry->first.starts_with(prefix); ++entry) {
    const auto& [full_name, tensor] = *entry;
    const std::string_view name = std::string_view(full_name).substr(prefix.size());
    const auto known = std::find_if(std::begin(kCounters), std::end(kCounters),
                                    [&](const auto& counter) { return name == counter.first; });
    if (known != std::end(kCounters) && tensor.numel() == 1 && tensor.scalar_type() == at::kLong &&
        (counters.*known->second = tensor.item<std::int64_t>()) >= 0) {
      ++counters_found;
    } else if (const auto error = bucket_in(name, "error.")) {
      errors[*error] = tensor.clone();
    } else if (const auto q = bucket_in(name, "q.")) {
      qs[*q] = tensor.clone();
    } else {
      throw Error(ErrorKind::invalid_argument, "PowerSgd: " + full_name + " is not part of a saved state");
    }
  }
  if (counters_found != std::size(kCounters)) {
    throw Error(ErrorKind::invalid_argument, "PowerSgd: no whole state was saved with names that begin with " + prefix);
  }
  random_.seed(options_.random_seed);
  random_.discard(static_cast<unsigned long long>(counters.random_draws));
  counters_ = counters;
  errors_ = std::move(errors);
  qs_ = std::move(qs);
}

PowerSgd::PowerSgd(const PowerSgdOptions& options) : memory_(std::make_shared<Memory>(options)) {}

CommHook PowerSgd::hook() const {
  return [memory = memory_](GradBucket& bucket, const ProcessGroup& group) {
    return memory->layer_by_layer(bucket, group);
  };
}

CommHook PowerSgd::batched_hook() const {
  return [memory = memory_](GradBucket& bucket, const ProcessGroup& group) { return memory->as_square(bucket, group); };
}

CompressionStats PowerSgd::compression_stats() const {
  return {memory_->counters().elements_before, memory_->counters().elements_after};
}

std::map<std::string, at::Tensor> PowerSgd::state(std::string_view prefix) const {
  return memory_->state(std::string(prefix));
}

void PowerSgd::load_state(const std::map<std::string, at::Tensor>& tensors, std::string_view prefix) {
  memory_->load_state(tensors, std::string(prefix));
}

}  // namespace lockstep
