#include "examples/fashion_mnist/article.h"

#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <iomanip>
#include <limits>
#include <stdexcept>
#include <vector>

using namespace lockstep;

namespace {

// The article's sampler for validation: indices rank, rank + K, ... below N / K. No rank has a last batch of one
// sample, which libtorch's batch norms refuse in training mode.
class FirstPart {
 public:
  FirstPart(std::size_t size, std::size_t batch_size, const World& world) {
    const auto ranks = static_cast<std::size_t>(world.size());
    for (auto i = static_cast<std::size_t>(world.rank()); i < size / ranks; i += ranks) {
      indices_.push_back(static_cast<std::int64_t>(i));
    }
    const std::size_t of_each = size / ranks / ranks, rest = of_each % batch_size;  // some ranks have one more
    if (rest <= 1) indices_.resize(of_each - rest);
  }
  std::size_t size() const { return indices_.size(); }
  auto begin() const { return indices_.begin(); }
  auto end() const { return indices_.end(); }

 private:
  std::vector<std::int64_t> indices_;
};

}  // namespace

Means evaluate_as_article(const std::function<at::Tensor(const at::Tensor&)>& model, const FashionMnist& dataset,
                          const World& world, const LoaderOptions& options,
                          const std::function<Means(const at::Tensor&, const at::Tensor&)>& metrics) {
  const at::NoGradGuard no_grad;
  FirstPart sampler(dataset.size(), options.batch_size, world);
  if (sampler.size() == 0) {
    throw std::runtime_error("--article-bugs: " + std::to_string(dataset.size()) + " test images are too few for " +
                             std::to_string(world.size()) + " ranks; use fewer ranks, or more images");
  }
  Means sums{};
  double batches = 0;
  for (auto& [x, y] : loader(dataset, sampler, options)) {
    const Means means = metrics(model(x), y);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += means[i];
    ++batches;
  }
  for (double& each : sums) each /= batches;
  world.all_reduce(sums, ReduceOp::avg);
  return sums;
}

StepLosses::StepLosses(const std::string& path, const World& world) : path_(path) {
  if (world.rank() != 0) return;
  out_.open(path);
  out_ << "step,train_loss\n" << std::setprecision(std::numeric_limits<double>::max_digits10);
}

void StepLosses::add(std::int64_t step, double mean_loss, std::int64_t samples, const World& world) {
  double sum = mean_loss * static_cast<double>(samples);
  world.all_reduce(sum, samples);
  if (world.rank() != 0) return;
  out_ << step << ',' << sum / static_cast<double>(samples) << std::endl;
  if (!out_) throw std::runtime_error("cannot write " + path_);
}
