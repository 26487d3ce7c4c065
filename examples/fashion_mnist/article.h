// Only for the comparison with an article's tables (docs/ARTICLE.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

#include "lockstep/lockstep.h"

// The article's validation, with its mistakes: the model stays in training mode, so that its batch norms use and learn
// the statistics of test batches; of N samples, K ranks see the first N / K only; and batches have the same
// weight, whatever their sizes. Collective. model: of batches' data. metrics: means over a batch.
using Means = std::array<double, 2>;
Means evaluate_as_article(const std::function<at::Tensor(const at::Tensor&)>& model,
                          const lockstep::FashionMnist& dataset, const lockstep::World& world,
                          const lockstep::LoaderOptions& options,
                          const std::function<Means(const at::Tensor&, const at::Tensor&)>& metrics);

// A CSV file with the mean loss of each step over the samples of all ranks, with all digits. Rank 0 writes it.
class StepLosses {
 public:
  StepLosses(const std::string& path, const lockstep::World& world);
  // mean_loss: of this rank's samples. Collective.
  void add(std::int64_t step, double mean_loss, std::int64_t samples, const lockstep::World& world);

 private:
  std::string path_;
  std::ofstream out_;
};
