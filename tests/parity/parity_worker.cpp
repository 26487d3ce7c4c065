// Trains a model with Lockstep's DistributedDataParallel as reference.py does with PyTorch's, and compares.
//   parity_worker <reference file>
// starts as many ranks as the file has. Exits with 1 and says what differs, or with 0 and says by how little.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>

#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "examples/models/toy.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/safetensors_file.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/group/world.h"
#include "lockstep/launch/spawn.h"
#include "tests/parity/support.h"

namespace {

using lockstep::Error;
using lockstep::ErrorKind;
using lockstep::World;
using Loss = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

// The difference, which must be within the tolerance.
double compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
  const double distance = parity::difference(got, expected);
  if (distance <= parity::kTolerance) return distance;
  throw Error(ErrorKind::internal, fmt::format("{} differs from PyTorch's by {:g}", what, distance));
}

void require_same_bits(const World& world, const std::string& name, const at::Tensor& parameter) {
  const auto copies = world.group().all_gather(parameter.detach().view(at::kInt));
  for (std::size_t rank = 1; rank < copies.size(); ++rank) {
    if (copies[rank].equal(copies[0])) continue;
    throw Error(ErrorKind::internal, fmt::format("{} has other bits on rank {} than on rank 0", name, rank));
  }
}

template <typename Model>
void train_and_compare(Model model, Loss loss_of, const std::string& name, const std::string& path) {
  at::set_num_threads(1);
  const World world = lockstep::init_process_group();
  const auto file = lockstep::load_checkpoint(path, lockstep::Integrity::if_present);
  // The other ranks keep their own random weights, which the wrapper has to replace.
  if (world.is_main_rank()) lockstep::load_module(file, *model, "initial/");
  lockstep::DistributedDataParallel ddp(model, world.group());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));

  const at::Tensor x = parity::tensor_of(file, "x")[world.rank()], y = parity::tensor_of(file, "y")[world.rank()];
  const at::Tensor losses = parity::tensor_of(file, "loss")[world.rank()];
  double worst_loss = 0, worst_state = 0;
  for (std::int64_t step = 0; step < losses.size(0); ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(ddp(x[step]), y[step]);
    loss.backward();
    optimizer.step();
    worst_loss = std::max(worst_loss, compare(fmt::format("the loss of step {}", step), loss, losses[step]));
  }
  for (const auto& item : model->named_parameters()) {
    require_same_bits(world, item.key(), item.value());
    const auto& expected = parity::tensor_of(file, "final/" + item.key());
    worst_state = std::max(worst_state, compare(item.key(), item.value(), expected));
  }
  for (const auto& item : model->named_buffers()) {
    const auto& expected = parity::tensor_of(file, fmt::format("final.{}/{}", world.rank(), item.key()));
    worst_state = std::max(worst_state, compare(item.key(), item.value(), expected));
  }
  if (!world.is_main_rank()) return;
  std::cout << fmt::format("{} on {} ranks, {} steps: losses within {:.2g}, parameters and buffers within {:.2g}\n",
                           name, world.size(), losses.size(0), worst_loss, worst_state);
}

void work(int rank, const std::string& name, const std::string& path) {
  at::manual_seed(1000 + rank);
  if (name == "toy") return train_and_compare(models::Toy(), parity::mean_squared_error, name, path);
  if (name == "mlp") return train_and_compare(models::Mlp(), parity::cross_entropy, name, path);
  if (name == "resnet18") return train_and_compare(models::ResNet18(10), parity::cross_entropy, name, path);
  throw Error(ErrorKind::invalid_argument, "the reference is of the model " + name + ", not of toy, mlp or resnet18");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: parity_worker <reference file>\n";
    return 2;
  }
  const std::string path = argv[1];
  try {
    const lockstep::SafetensorsReader file(path, lockstep::Integrity::if_present);
    const auto& metadata = file.header().metadata;
    lockstep::spawn(argc, argv, [&](int rank) { work(rank, metadata.at("model"), path); },
                    {.nprocs = std::stoi(metadata.at("ranks")), .threads_per_rank = 1});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
