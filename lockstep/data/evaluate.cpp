#include "lockstep/data/evaluate.h"

#include <torch/nn/module.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::internal {

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

}  // namespace lockstep::internal
