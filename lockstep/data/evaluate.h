// What a trained model is worth: means over a test set that all ranks share, every sample once. model, dataset ->
// means.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/group/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace internal {

// Puts a module and its parts in evaluation mode, and each back in the mode that it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  const bool was_training_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> parts_;  // each behind what it is a part of
};

// The module itself, of a DistributedDataParallel or of a holder.
template <class Model>
torch::nn::Module& module_of(Model& model) {
  if constexpr (requires { model->sync_buffers(); }) {
    return *model->module();
  } else {
    return *model;
  }
}

void require_all_samples(std::size_t samples, const LoaderOptions& options);

}  // namespace internal

// The same means on all ranks, whatever their number; ranks may have no samples.
//   const auto [loss, accuracy] = lockstep::evaluate(ddp, test, world, {.batch_size = 64}, [](auto& output, auto& y) {
//     return std::array{...item<double>(), ...item<double>()}; });
// model: of batches' data, a DistributedDataParallel or the module's holder. It and all its parts are in evaluation
// mode meanwhile, and afterwards each in the mode that it was in; a DistributedDataParallel has rank 0's buffers.
// metrics: means over a batch, of the model's output and the batch's target. Collective. Error{invalid_argument}:
// options that leave out samples (drop_last, first_batch, stop_when), or a data set without any.
template <class Model, class Dataset, class Metrics>
auto evaluate(Model& model, const Dataset& dataset, const ProcessGroup& group, const LoaderOptions& options,
              Metrics&& metrics) {
  internal::require_all_samples(size_of(dataset), options);
  const at::NoGradGuard no_grad;
  const internal::EvaluationMode mode(internal::module_of(model));
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
