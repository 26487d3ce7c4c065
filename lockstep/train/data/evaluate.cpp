#include "lockstep/train/data/evaluate.h"

#include <ATen/ops/from_blob.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

namespace {

// Empty if evaluate() can be computed so.
std::string problem_of(std::size_t samples, const LoaderOptions& options) {
  if (samples == 0) return "the data set has no samples, so there are no means";
  if (options.batch_size == 0) return "batch_size is 0; give 1 or more";
  const char* leaves_out = options.drop_last          ? "drop_last"
                           : options.stop_when        ? "stop_when"
                           : options.first_batch != 0 ? "first_batch"
                                                      : nullptr;
  if (leaves_out == nullptr) return "";
  return fmt::format("{} leaves out samples; without it every sample counts once", leaves_out);
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

std::size_t agree_on_batch_size(std::size_t samples, const LoaderOptions& options, const ProcessGroup& group) {
  const std::string problem = problem_of(samples, options);
  const std::size_t batch_size = std::min(options.batch_size, samples);
  const auto all = static_cast<std::int64_t>(samples), batch = static_cast<std::int64_t>(batch_size);
  std::array<std::int64_t, 5> most{all, -all, batch, -batch, problem.empty() ? 0 : 1};
  group.all_reduce(most, ReduceOp::max);
  const auto throw_error = [](const std::string& text) {
    throw Error(ErrorKind::invalid_argument, "evaluate: " + text);
  };
  if (!problem.empty()) throw_error(problem);
  if (most[4] != 0) throw_error("another rank rejected its data set or options; see the error of that rank");
  const auto require_same = [&](const char* what, std::int64_t largest, std::int64_t smallest, std::int64_t here) {
    if (smallest == largest) return;
    throw_error(
        fmt::format("ranks differ in {}: from {} to {}, on this rank {}. Pass the whole data set and the same "
                    "batch_size on every rank",
                    what, smallest, largest, here));
  };
  require_same("samples of the data set", most[0], -most[1], all);
  require_same("batch_size", most[2], -most[3], batch);
  return batch_size;
}

EvaluationShare::EvaluationShare(std::size_t samples, std::size_t batch_size, std::size_t width,
                                 const ProcessGroup& group)
    : samples_(samples), batch_size_(batch_size), group_(group), next_(static_cast<std::size_t>(group.rank())) {
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
