#include "lockstep/data/evaluate.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <array>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::internal {

namespace {

// Otherwise some samples would count twice and others not at all. Collective.
void require_same_on_all_ranks(const char* what, std::size_t number, const ProcessGroup& group) {
  const auto here = static_cast<std::int64_t>(number);
  std::array<std::int64_t, 2> bounds{here, -here};
  group.all_reduce(bounds, ReduceOp::max);
  const auto [largest, negative] = bounds;
  if (largest == -negative) return;
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("evaluate: ranks differ in {}: from {} to {}, here {}. Each rank passes the whole data set, of "
                  "which it gets a share, and the same batch_size",
                  what, -negative, largest, here));
}

}  // namespace

EvaluationMode::EvaluationMode(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
  for (auto& part : module.modules(/*include_self=*/false)) {
    const bool was_training = part->is_training();
    parts_.emplace_back(std::move(part), was_training);
  }
  module.eval();
}

EvaluationMode::~EvaluationMode() {
  module_.train(was_training_);
  for (const auto& [part, was_training] : parts_) part->train(was_training);
}

void require_all_samples(std::size_t samples, const LoaderOptions& options) {
  if (samples == 0) {
    throw Error(ErrorKind::invalid_argument, "evaluate: the data set has no samples, so there are no means");
  }
  if (!options.drop_last && options.first_batch == 0 && !options.stop_when) return;
  throw Error(ErrorKind::invalid_argument, std::string("evaluate: ") +
                                               (options.drop_last   ? "drop_last"
                                                : options.stop_when ? "stop_when"
                                                                    : "first_batch") +
                                               " leaves out samples; without it every sample counts once");
}

EvaluationShare::EvaluationShare(std::size_t samples, std::size_t batch_size, std::size_t width,
                                 const ProcessGroup& group)
    : samples_(samples), batch_size_(batch_size), group_(group), next_(static_cast<std::size_t>(group.rank())) {
  if (batch_size == 0) throw Error(ErrorKind::invalid_argument, "evaluate: batch_size is 0");
  require_same_on_all_ranks("samples of the data set", samples, group);
  require_same_on_all_ranks("batch_size", batch_size, group);
  const std::size_t batches = (samples + batch_size - 1) / batch_size;
  sums_.resize(batches * width);
  for (std::size_t batch = next_; batch < batches; batch += static_cast<std::size_t>(group.size())) {
    for (std::size_t i = 0; i < samples_of(batch); ++i) {
      indices_.push_back(static_cast<std::int64_t>(batch * batch_size + i));
    }
  }
}

void EvaluationShare::add(std::span<const double> means) {
  for (std::size_t i = 0; i < means.size(); ++i) {
    sums_[next_ * means.size() + i] = means[i] * static_cast<double>(samples_of(next_));
  }
  next_ += static_cast<std::size_t>(group_.size());
}

void EvaluationShare::average(std::span<double> means) {
  const auto numbers = static_cast<std::int64_t>(sums_.size());
  group_.all_reduce(at::from_blob(sums_.data(), {numbers}, at::kDouble));
  std::ranges::fill(means, 0);
  for (std::size_t i = 0; i < sums_.size(); ++i) means[i % means.size()] += sums_[i];
  for (double& each : means) each /= static_cast<double>(samples_);
}

}  // namespace lockstep::internal
