// A model that is split over two devices, in data parallel training: every rank has its own two devices, forward()
// moves tensors from one to the other, and DistributedDataParallel needs no options for it. Here both devices of all
// ranks are the CPU, so that it runs anywhere; with GPUs rank r would take cuda:2r and cuda:2r+1.
//   build/bin/model_parallel [ranks]
#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "examples/arguments.h"
#include "lockstep/lockstep.h"

namespace {

namespace F = torch::nn::functional;

struct ToyMpModelImpl : torch::nn::Module {
  ToyMpModelImpl(at::Device first, at::Device second)
      : device0(first),
        device1(second),
        net1(register_module("net1", torch::nn::Linear(10, 10))),
        net2(register_module("net2", torch::nn::Linear(10, 5))) {
    net1->to(device0);
    net2->to(device1);
  }
  at::Tensor forward(const at::Tensor& x) { return net2(at::relu(net1(x.to(device0))).to(device1)); }

  at::Device device0, device1;
  torch::nn::Linear net1, net2;
};
TORCH_MODULE(ToyMpModel);

constexpr std::int64_t kSamples = 20;  // of each rank
constexpr int kSteps = 20;

// Largest difference between any two parameters.
double difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  double largest = 0;
  const auto of_a = a.parameters(), of_b = b.parameters();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    largest = std::max(largest, (of_a[i] - of_b[i]).abs().max().item<double>());
  }
  return largest;
}

void demo_model_parallel(int rank) {
  std::printf("Running DDP with model parallel example on rank %d.\n", rank);
  const auto world = lockstep::init_process_group();

  ToyMpModel model(at::kCPU, at::kCPU);
  lockstep::DistributedDataParallel ddp(model, world);  // no device_ids, no output_device
  torch::optim::SGD optimizer(ddp.parameters(), 0.05);

  // The same training by one process, with the batches of all ranks.
  ToyMpModel alone(at::kCPU, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) alone->parameters()[i].copy_(model->parameters()[i]);
  }
  torch::optim::SGD plain(alone->parameters(), 0.05);

  at::manual_seed(7);  // all ranks know the whole data, and take their part of it
  const at::Tensor inputs = at::randn({world.size() * kSamples, 10});
  const at::Tensor labels = at::randn({world.size() * kSamples, 5});
  const auto part = [&](const at::Tensor& all) { return all.narrow(0, rank * kSamples, kSamples); };
  double first_loss = 0, last_loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    plain.zero_grad();
    const at::Tensor outputs = ddp(part(inputs));
    F::mse_loss(outputs, part(labels).to(model->device1)).backward();
    const at::Tensor loss = F::mse_loss(alone(inputs), labels);
    loss.backward();
    optimizer.step();
    plain.step();
    last_loss = loss.item<double>();
    if (step == 0) first_loss = last_loss;
  }

  double worst = difference(*model, *alone);
  world.all_reduce(worst, lockstep::ReduceOp::max);
  log_rank0(world, "%d ranks x 2 devices: %s one process makes, and the loss %s from %.3f to %.3f", world.size(),
            worst < 1e-6 ? "the same model as" : "NOT the model that", last_loss < first_loss ? "fell" : "did NOT fall",
            first_loss, last_loss);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int ranks = number_at(1, argc, argv, 2);
    lockstep::spawn(argc, argv, demo_model_parallel, {.nprocs = ranks});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_parallel: %s\n", error.what());
    return 1;
  }
}
