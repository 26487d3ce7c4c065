// Evaluates a model: means over a test set that the ranks divide, every sample once. model, dataset -> means.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/data/dataset_size.h"
#include "lockstep/train/data/loader.h"

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
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> parts_;  // each after its parent
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

template <class T>
inline constexpr bool is_array_of_double = false;
template <std::size_t N>
inline constexpr bool is_array_of_double<std::array<double, N>> = N != 0;

// How many samples a batch has, in all batches but the last. Collective. Error{invalid_argument} on all ranks: see
// evaluate().
std::size_t agree_on_batch_size(std::size_t samples, const LoaderOptions& options, const ProcessGroup& group);

// A rank's share of a data set: every size()-th batch. Which samples are in a batch, and the order in which batches are
// added up, do not depend on the number of ranks.
class EvaluationShare {
 public:
  // batch_size: at least 1. width: how many means a batch has.
  EvaluationShare(std::size_t samples, std::size_t batch_size, std::size_t width, const ProcessGroup& group);
  std::vector<std::int64_t>& indices() { return indices_; }
  void add(std::span<const double> means);  // of the next batch of this rank
  void average(std::span<double> means);    // over all samples. Collective

 private:
  std::size_t samples_of(std::size_t batch) const { return std::min(batch_size_, samples_ - batch * batch_size_); }

  const std::size_t samples_, batch_size_;
  const ProcessGroup& group_;
  std::vector<std::int64_t> indices_;
  std::size_t next_;
  std::vector<double> sums_;  // of each batch of the data set; zeros where it is another rank's
};

}  // namespace internal

// The same means on all ranks, at any number of ranks; ranks may have no samples. They have the same bits if ranks
// compute with the same number of threads, as they do here for a DistributedDataParallel in lockstep mode.
//   const auto [loss, accuracy] = lockstep::evaluate(ddp, test, world, {.batch_size = 64}, [](auto& output, auto& y) {
//     return std::array{...item<double>(), ...item<double>()}; });
// model: of batches' data, a DistributedDataParallel or the module's holder. It and all its parts are in evaluation
// mode meanwhile, and afterwards each in the mode that it was in. A DistributedDataParallel has rank 0's buffers,
// unless forward_sync_buffers is off. metrics: means over a batch, of the model's output and the batch's target: a
// std::array<double, N>. Collective. Error{invalid_argument} on all ranks: a data set without samples, options that
// leave some out (drop_last, first_batch, stop_when), ranks whose batch sizes or data sets' sizes differ. Error{desync}
// on all ranks: parameters of a DistributedDataParallel differ, unless its compare_parameters_every is 0.
template <class Model, class Dataset, class Metrics>
auto evaluate(Model& model, const Dataset& dataset, const ProcessGroup& group, const LoaderOptions& options,
              Metrics&& metrics) {
  using Means = std::remove_cvref_t<std::invoke_result_t<Metrics, const at::Tensor&, const at::Tensor&>>;
  static_assert(internal::is_array_of_double<Means>, "metrics return a std::array<double, N>");
  const std::size_t samples = internal::DatasetSize(dataset);
  const std::size_t batch_size = internal::agree_on_batch_size(samples, options, group);
  const at::NoGradGuard no_grad;
  const internal::EvaluationMode mode(internal::module_of(model));
  if constexpr (requires { model->compare_parameters(group); }) model->compare_parameters(group);
  // Otherwise the first forward does it, which a rank without samples does not make.
  if constexpr (requires { model->sync_buffers(); }) model->sync_buffers();
  std::shared_ptr<const void> threads;  // metrics are computed with as many as the forward is
  if constexpr (requires { model->shard_threads(); }) threads = model->shard_threads();
  Means means{};
  internal::EvaluationShare share(samples, batch_size, means.size(), group);
  try {
    for (auto& [x, y] : loader(dataset, share.indices(), options)) {
      const at::Tensor output = model->forward(x);
      means = metrics(output, y);
      share.add(means);
    }
  } catch (...) {
    group.note_exception("evaluate");  // for the other ranks, which wait
    throw;
  }
  share.average(means);
  return means;
}

}  // namespace lockstep
