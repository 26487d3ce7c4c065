// What a trained model is worth: means over a test set that all ranks share, every sample once. model, dataset ->
// means.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <type_traits>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/group/process_group.h"

namespace lockstep {

// The same means on all ranks, whatever their number.
//   const auto [loss, accuracy] = lockstep::evaluate(ddp, test, world, {.batch_size = 64}, [](auto& output, auto& y) {
//     return std::array{...item<double>(), ...item<double>()}; });
// model: of batches' data, a DistributedDataParallel or the module's holder; it is back in training mode afterwards.
// metrics: means over a batch, of the model's output and the batch's target. Collective.
template <class Model, class Dataset, class Metrics>
auto evaluate(Model& model, const Dataset& dataset, const ProcessGroup& group, const LoaderOptions& options,
              Metrics&& metrics) {
  const at::NoGradGuard no_grad;
  model->eval();
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
  model->train();
  group.all_reduce(sums, all_samples);
  for (double& each : sums) each /= all_samples;
  return sums;
}

}  // namespace lockstep
