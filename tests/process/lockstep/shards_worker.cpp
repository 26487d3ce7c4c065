// One rank that trains in lockstep mode:
//   shards_worker FOLDER|- MODEL:FIRST:LAST ...
// trains each model (mlp, gpt, resnet18, resnet18_sync) from step FIRST to step LAST and prints "RANK MODEL <SHA-256 of
// parameters, buffers and optimizer state> <mean loss of the last step> over <transport>". With a folder it goes on
// from FOLDER/MODEL-FIRST unless FIRST is 0, and writes FOLDER/MODEL-LAST.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "examples/models/gpt.h"
#include "examples/models/resnet18.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/checkpoint/module_state.h"
#include "lockstep/train/checkpoint/optimizer_state.h"
#include "lockstep/train/checkpoint/state_digest.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "lockstep/train/nn/convert_sync_batchnorm.h"

namespace {

using lockstep::Checkpoint;
using lockstep::LockstepState;
using torch::optim::Optimizer;

constexpr int kShards = 8;

struct Span {
  std::string model;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

Span parse(const std::string& text) {
  const auto one = text.find(':'), two = text.rfind(':');
  return {text.substr(0, one), std::stoull(text.substr(one + 1, two - one - 1)), std::stoull(text.substr(two + 1))};
}

Checkpoint state_of(const torch::nn::Module& model, const Optimizer& optimizer) {
  Checkpoint checkpoint;
  lockstep::add_module(checkpoint, model);
  lockstep::add_optimizer(checkpoint, optimizer);
  return checkpoint;
}

// loss_of(ddp) makes the loss of some samples, which it draws; a shard has `backwards` of them.
template <class Model, class LossOf>
void train(const Span& span, const std::string& folder, const lockstep::World& world, Model model,
           const std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>& make_optimizer, int backwards,
           LossOf loss_of) {
  lockstep::DistributedDataParallel ddp(model, world.group(), {.lockstep = {.shards = kShards, .seed = 3}});
  const auto optimizer = make_optimizer(ddp.parameters());
  if (span.first != 0) {
    const Checkpoint checkpoint = lockstep::load_checkpoint(fmt::format("{}/{}-{}", folder, span.model, span.first));
    lockstep::load_module(checkpoint, *model);
    lockstep::load_optimizer(checkpoint, *optimizer);
    LockstepState state = ddp.lockstep_state();
    state.step = span.first;
    ddp.load_lockstep_state(state);
  }
  double mean_loss = 0;
  for (std::uint64_t step = span.first; step < span.last; ++step) {
    mean_loss = ddp.for_each_shard([&](const lockstep::Shard&) {
      double sum = 0;
      for (int i = 0; i < backwards; ++i) {
        const at::Tensor loss = loss_of(ddp) / backwards;
        loss.backward();
        sum += loss.template item<double>();
      }
      return sum;
    });
    optimizer->step();
  }
  const Checkpoint state = state_of(*model, *optimizer);
  if (folder != "-" && world.is_main_rank()) {
    lockstep::save_checkpoint(fmt::format("{}/{}-{}", folder, span.model, span.last), state);
  }
  std::printf("%s\n", fmt::format("{} {} {} {} over {}", world.rank(), span.model, lockstep::sha256_of(state),
                                  mean_loss, world.group().transport())
                          .c_str());
  std::fflush(stdout);
}

std::unique_ptr<Optimizer> make_sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.02).momentum(0.9));
}

std::unique_ptr<Optimizer> make_adamw(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

void train(const Span& span, const std::string& folder, const lockstep::World& world) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));  // rank 0's weights are what counts
  if (span.model == "mlp") {
    const torch::nn::Sequential model(torch::nn::Linear(32, 300), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                                      torch::nn::Linear(300, 300), torch::nn::ReLU(), torch::nn::Linear(300, 10));
    train(span, folder, world, model, make_sgd, 2, [](auto& ddp) {
      return at::cross_entropy_loss(ddp(at::randn({4, 32})), at::randint(10, {4}, at::kLong));
    });
  } else if (span.model == "gpt") {
    const models::Gpt model(
        models::GptOptions{.vocabulary = 31, .context = 16, .layers = 1, .heads = 2, .width = 32, .dropout = 0.1});
    train(span, folder, world, model, make_adamw, 1, [](auto& ddp) {
      const at::Tensor tokens = at::randint(31, {2, 17}, at::kLong);
      const at::Tensor logits = ddp(tokens.slice(1, 0, 16).contiguous());
      return at::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1, 17).flatten());
    });
  } else if (span.model == "resnet18" || span.model == "resnet18_sync") {
    const models::ResNet18 model(10);
    if (span.model == "resnet18_sync") lockstep::convert_sync_batchnorm(model, world.group());
    train(span, folder, world, model, make_sgd, 1, [](auto& ddp) {
      return at::cross_entropy_loss(ddp(at::randn({2, 3, 16, 16})), at::randint(10, {2}, at::kLong));
    });
  } else {
    throw lockstep::Error(lockstep::ErrorKind::invalid_argument, "no such model: " + span.model);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto world = lockstep::init_process_group();
    for (int i = 2; i < argc; ++i) train(parse(argv[i]), argv[1], world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shards_worker: %s\n", error.what());
    return 1;
  }
}
