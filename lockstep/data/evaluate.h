// What a trained model is worth: means over a test set that all ranks share, every sample once. model, dataset ->
// means.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/group/process_group.h"

namespace lockstep {

// Puts a model in evaluation mode, and back in the mode that it was in.
template <class Model>
class EvaluationMode {
 public:
  explicit EvaluationMode(Model& model) : model_(model), was_training_(model->is_training()) { model->eval(); }
  ~EvaluationMode() { model_->train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Model& model_;
  const bool was_training_;
};

inline void require_all_samples(const LoaderOptions& options) {
  if (!options.drop_last && options.first_batch == 0) return;
  throw Error(ErrorKind::invalid_argument, std::string("evaluate: ") +
                                               (options.drop_last ? "drop_last" : "first_batch") +
                                               " leaves out samples; without it every sample counts once");
}

// The same means on all ranks, whatever their number; ranks may have no samples.
//   const auto [loss, accuracy] = lockstep::evaluate(ddp, test, world, {.batch_size = 64}, [](auto& output, auto& y) {
//     return std::array{...item<double>(), ...item<double>()}; });
// model: of batches' data, a DistributedDataParallel or the module's holder. It is in evaluation mode meanwhile; a
// DistributedDataParallel has rank 0's buffers. metrics: means over a batch, of the model's output and the batch's
// target. Collective. Error{invalid_argument}: options that leave out samples (drop_last, first_batch).
template <class Model, class Dataset, class Metrics>
auto evaluate(Model& model, const Dataset& dataset, const ProcessGroup& group, const LoaderOptions& options,
              Metrics&& metrics) {
  require_all_samples(options);
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(model);
  // Otherwise the first forward does it, which a rank without samples does not make.
  if constexpr (requires { model->sync_buffers(); }) model->sync_buffers();
  DistributedSampler sampler(size_of(dataset), group, {.shuffle = false, .padding = Padding::none});
  std::invoke_result_t<Metrics, const at::Tensor&, const at::Tensor&> sums{};
  double all_samples = 0;
  for (auto& [x, y] : loader(dataset, sampler, options)) {
    const at::Tensor output = model->forward(x);
    const auto means = metrics(output, y);
    const auto samples = static_cast<double>(x.size(0));
    for (std::size_t i = 0; i < means.size(); ++i) sums[i] += means[i] * samples;
    all_samples += samples;
  }
  group.all_reduce(sums, all_samples);
  for (double& each : sums) each /= all_samples;
  return sums;
}

}  // namespace lockstep
