// What a trained model is worth: means over a test set that all ranks share, every sample once. model, dataset ->
// means.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

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

// A rank's share of a data set: every size()-th batch. Which samples are in a batch, and the order in which batches are
// added up, do not depend on the number of ranks.
class EvaluationShare {
 public:
  // width: how many means a batch has. Error{invalid_argument}: batches of no samples, or others on other ranks.
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

// The same means on all ranks; ranks may have no samples. With equal batch sizes they are the same at any number of
// ranks; to the bit if ranks compute with equally many threads, as a DistributedDataParallel in lockstep mode does.
//   const auto [loss, accuracy] = lockstep::evaluate(ddp, test, world, {.batch_size = 64}, [](auto& output, auto& y) {
//     return std::array{...item<double>(), ...item<double>()}; });
// model: of batches' data, a DistributedDataParallel or the module's holder. It and all its parts are in evaluation
// mode meanwhile, and afterwards each in the mode that it was in; a DistributedDataParallel has rank 0's buffers.
// metrics: means over a batch, of the model's output and the batch's target. Collective. Error{invalid_argument}: a
// data set without samples, options that leave some out (drop_last, first_batch, stop_when), or ranks whose batch sizes
// or data sets' sizes differ.
template <class Model, class Dataset, class Metrics>
auto evaluate(Model& model, const Dataset& dataset, const ProcessGroup& group, const LoaderOptions& options,
              Metrics&& metrics) {
  internal::require_all_samples(size_of(dataset), options);
  const at::NoGradGuard no_grad;
  const internal::EvaluationMode mode(internal::module_of(model));
  // Otherwise the first forward does it, which a rank without samples does not make.
  if constexpr (requires { model->sync_buffers(); }) model->sync_buffers();
  std::invoke_result_t<Metrics, const at::Tensor&, const at::Tensor&> means{};
  internal::EvaluationShare share(size_of(dataset), options.batch_size, means.size(), group);
  for (auto& [x, y] : loader(dataset, share.indices(), options)) {
    const at::Tensor output = model->forward(x);
    means = metrics(output, y);
    share.add(means);
  }
  share.average(means);
  return means;
}

}  // namespace lockstep
