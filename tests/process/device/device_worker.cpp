// A rank of a job on GPUs, for device_test.py: device_worker collectives|train|killed|different
// Ranks that share a GPU say that they are of different hosts, which is all that NCCL asks. Ends with 77 without a GPU.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <signal.h>
#include <torch/cuda.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"

using namespace lockstep;

namespace {

at::Tensor numbers(std::int64_t count, int seed) { return (at::arange(count, at::kLong) * 7 + seed) % 11; }

void expect(bool is_true, const std::string& what) {
  if (!is_true) throw Error(ErrorKind::internal, "wrong result: " + what);
}

// Against the same calls with tensors of the host.
void random_collectives(const World& world, at::Device device) {
  std::mt19937 random(7);
  const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  for (int i = 0; i < 300; ++i) {
    const std::int64_t count = pick(3) == 0 ? pick(5) : 1 + pick(100'000);
    const at::ScalarType types[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte};
    const at::ScalarType type = types[pick(7)];
    const int kind = pick(8), root = pick(world.size()), n = world.size();
    std::vector<at::Tensor> results[2];
    for (const bool on_device : {false, true}) {
      const auto made = [&](int seed) {
        const at::Tensor tensor = numbers(count, seed + world.rank()).to(type);
        return on_device ? tensor.to(device) : tensor;
      };
      const auto several = [&](int seed) {
        std::vector<at::Tensor> tensors;
        for (int rank = 0; rank < n; ++rank) tensors.push_back(made(seed + rank));
        return tensors;
      };
      std::vector<at::Tensor> out{made(1)};
      switch (kind) {
        case 0: world.all_reduce(out[0]); break;
        case 1: world.all_reduce(out[0], ReduceOp::max); break;
        case 2: world.broadcast(out[0], root); break;
        case 3: out = world.all_gather(made(2)); break;
        case 4: world.reduce_scatter(out[0], several(3)); break;
        case 5: world.all_to_all(out = several(1), several(4)); break;
        case 6: out = world.gather(made(5), root); break;
        default: world.scatter(out[0], world.rank() == root ? several(6) : std::vector<at::Tensor>(), root); break;
      }
      for (const at::Tensor& each : out) results[on_device ? 1 : 0].push_back(each.to(at::kCPU));
    }
    for (std::size_t j = 0; j < results[0].size(); ++j) {
      expect(at::equal(results[0][j], results[1][j]), "call " + std::to_string(i) + " of kind " + std::to_string(kind));
    }
  }
}

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(20, 300), torch::nn::Linear(300, 5));
  const at::NoGradGuard no_grad;
  int seed = 0;
  for (auto& parameter : model->parameters())
    parameter.copy_(numbers(parameter.numel(), ++seed).view_as(parameter) / 100);
  return model;
}

void train(const World& world, at::Device device) {
  torch::nn::Sequential model = make_model(), alone = make_model();
  model->to(device);
  DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), 0.01), reference(alone->parameters(), 0.01);
  const auto batch = [](int step, int rank) { return numbers(80, step + 3 * rank).view({4, 20}).to(at::kFloat) / 10; };
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    ddp(batch(step, world.rank()).to(device)).square().mean().backward();
    for (int rank = 0; rank < world.size(); ++rank) {
      (alone->forward(batch(step, rank)).square().mean() / world.size()).backward();
    }
    optimizer.step();
    reference.step();
  }
  const auto found = model->parameters(), wanted = alone->parameters();
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect(at::allclose(found[i].to(at::kCPU), wanted[i], 1e-3, 1e-4), "parameter " + std::to_string(i));
  }
}

// Rank 1 dies, or makes another call; the others say after how long they know.
void fail(const World& world, at::Device device, bool dies) {
  const at::Tensor tensor = at::ones({1000}, at::kFloat).to(device);
  for (int i = 0; i < 20; ++i) world.all_reduce(tensor);
  world.barrier();
  if (world.rank() == 1 && dies) raise(SIGKILL);
  const auto begun = std::chrono::steady_clock::now();
  try {
    world.rank() == 1 ? world.broadcast(tensor) : world.all_reduce(tensor);
    world.barrier();
  } catch (const Error& error) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begun;
    std::cout << "after " << elapsed.count() << " s: " << error.what() << std::endl;
    at::ones({1000}, at::kFloat).to(device).sum().item<float>();  // the GPU is free
    std::cout << "the GPU is free" << std::endl;
    return;
  }
  throw Error(ErrorKind::internal, "no error came");
}

}  // namespace

int main(int, char** arguments) try {
  if (!at::hasCUDA()) return 77;
  ::setenv("NCCL_HOSTID", std::getenv("RANK"), 1);
  const std::string task = arguments[1];
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_device(0, gpus)));
  const World world = init_process_group(
      {.backend = "nccl", .timeout = std::chrono::seconds(60), .device = device, .shared_gpu = SharedGpu::allow});
  if (task == "collectives") random_collectives(world, device);
  if (task == "train") train(world, device);
  if (task == "killed" || task == "different") fail(world, device, task == "killed");
  std::cout << "rank " << world.rank() << " of " << world.size() << ": done" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
