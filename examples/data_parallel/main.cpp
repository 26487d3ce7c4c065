// Trains a small classifier on generated points, in two versions with few lines of difference: single_process uses
// libtorch alone, data_parallel trains on all ranks of a job.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <optional>

#include "examples/models/toy.h"
#include "lockstep/lockstep.h"

namespace {

// Points of ten coordinates. A point's class is the direction, of five, into which it reaches furthest.
struct Points : torch::data::datasets::Dataset<Points> {
  Points(std::int64_t count, const torch::Tensor& directions)
      : x(torch::randn({count, 10})), y(x.matmul(directions).argmax(1)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {x[i], y[i]};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(x.size(0)); }

  torch::Tensor x, y;
};

// The part of all points whose class the model predicts.
template <class Model>
double accuracy(Model& model, const Points& points) {
  const torch::NoGradGuard no_grad;
  return model->forward(points.x).argmax(1).eq(points.y).to(torch::kDouble).mean().template item<double>();
}

}  // namespace

int main() {
  const auto world = lockstep::init_process_group();
  torch::manual_seed(0);
  const torch::Tensor directions = torch::randn({10, 5});
  Points points(6000, directions);
  const Points unseen(2000, directions);

  lockstep::DistributedDataParallel model(models::Toy(), world);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  lockstep::DistributedSampler sampler(6000, world);
  auto batches = torch::data::make_data_loader(points.map(torch::data::transforms::Stack<>()), sampler, 50);

  for (int epoch = 0; epoch < 5; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : *batches) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }
    log_rank0(world, "epoch %d: accuracy %.3f", epoch, accuracy(model, unseen));
  }
}
