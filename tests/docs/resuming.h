// What a documentation's page says of a training that is stopped and goes on runs as a program: resume_test.py starts
// it as ./resume_<name> <file> <stop>. Each rank adds the samples that it trains on to <file>.<rank>, and one asks for
// an end after <stop> steps; 0: none. Included by the source that snippets.py makes.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>

#include "lockstep/lockstep.h"

namespace resuming {

struct Batch {
  at::Tensor x, y;
};

// Sample i is the number i.
struct Numbers {
  std::size_t size() const { return 2 * 64 * 40; }  // on two ranks 40 steps of the default size
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor x = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
    return {x.to(at::kFloat).unsqueeze(1), at::zeros_like(x)};
  }
};

// Hands on what it gets, and writes it down. What a loader has prepared and nobody has trained on does not come here.
struct RecorderImpl : torch::nn::Module {
  RecorderImpl(const std::string& path, int stop_after) : file(path, std::ios::app), steps_left(stop_after) {}
  at::Tensor forward(const at::Tensor& x) {
    for (std::int64_t row = 0; row < x.size(0); ++row) file << x[row].item<std::int64_t>() << '\n';
    if (steps_left != 0 && --steps_left == 0) lockstep::request_stop();
    return x;
  }
  std::ofstream file;
  int steps_left;
};
TORCH_MODULE(Recorder);

template <class Snippet>
int run(const Snippet& snippet, int argc, char** argv) {
  if (argc != 3) return 2;
  lockstep::World world = lockstep::init_process_group();
  const bool is_last = world.rank() == world.size() - 1;  // so that rank 0 has to learn of it
  torch::nn::Sequential model(
      Recorder(argv[1] + ("." + std::to_string(world.rank())), is_last ? std::atoi(argv[2]) : 0),
      torch::nn::Linear(1, 2));
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(ddp.parameters(), 1e-9);
  const Numbers train;
  lockstep::DistributedSampler sampler(train.size(), world);
  snippet(world, train, ddp, optimizer, sampler);
  return 0;
}

}  // namespace resuming
