// A training loop as a class, with snapshots: whenever the program is started, it continues from the last snapshot,
// with any number of ranks.
//   lockstep run --nproc-per-node 2 build/bin/trainer 10 3
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/lockstep.h"

namespace {

using lockstep::World;

struct Batch {
  at::Tensor x, y;
};

// Pairs of a vector and its value under a fixed linear function.
struct Samples {
  at::Tensor x, y;

  explicit Samples(std::int64_t count) {
    at::manual_seed(0);  // the same samples on all ranks
    x = at::rand({count, 20});
    y = x.matmul(at::rand({20, 1}));
  }
  std::size_t size() const { return static_cast<std::size_t>(x.size(0)); }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    const at::Tensor chosen = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
    return {x.index_select(0, chosen), y.index_select(0, chosen)};
  }
};

// This rank's part of the samples, in batches, in a different order in each epoch.
class DataLoader {
 public:
  DataLoader(Samples samples, const World& world, std::size_t batch_size)
      : samples_(std::move(samples)), sampler_(samples_.size(), world), options_{.batch_size = batch_size} {}

  auto batches(std::int64_t epoch) {
    sampler_.set_epoch(epoch);
    return lockstep::loader(samples_, sampler_, options_);
  }

 private:
  Samples samples_;
  lockstep::DistributedSampler sampler_;
  lockstep::LoaderOptions options_;
};

DataLoader prepare_dataloader(Samples samples, const World& world, std::size_t batch_size = 32) {
  return {std::move(samples), world, batch_size};
}

class Trainer {
 public:
  // Continues from the snapshot, if there is one.
  Trainer(torch::nn::Linear model, DataLoader& train_data, torch::optim::Optimizer& optimizer, const World& world,
          int save_every, std::filesystem::path snapshot)
      : ddp_(model, world),
        train_data_(train_data),
        optimizer_(optimizer),
        world_(world),
        save_every_(save_every),
        snapshot_(std::move(snapshot)) {
    // Rank 0 looks, so that all ranks do the same.
    if (world_.broadcast_object(std::filesystem::exists(snapshot_))) load_snapshot();
  }

  void train(int total_epochs) {
    for (int epoch = epochs_run_; epoch < total_epochs; ++epoch) {
      run_epoch(epoch);
      if (epoch % save_every_ == 0 && world_.is_main_rank()) save_snapshot(epoch);
    }
  }

 private:
  double run_batch(const at::Tensor& x, const at::Tensor& y) {
    optimizer_.zero_grad();
    const at::Tensor loss = at::mse_loss(ddp_(x), y);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

  void run_epoch(int epoch) {
    double loss = 0, samples = 0;
    const auto batches = train_data_.batches(epoch);
    for (auto& [x, y] : batches) {
      const auto count = static_cast<double>(x.size(0));
      loss += run_batch(x, y) * count;
      samples += count;
    }
    world_.all_reduce(loss, samples);
    log_rank0(world_, "Epoch %d | Ranks %d | Steps %zu | Loss %.5f", epoch, world_.size(), batches.size(),
              loss / samples);
  }

  void save_snapshot(int epoch) {
    using lockstep::TorchValue;
    std::filesystem::create_directories(std::filesystem::absolute(snapshot_).parent_path());
    lockstep::Checkpoint model;
    lockstep::add_module(model, *ddp_.module(), "");
    lockstep::write_torch_file(snapshot_, {TorchValue::Dict{{"MODEL_STATE", lockstep::torch_state_dict(model.tensors)},
                                                            {"OPTIMIZER_STATE", lockstep::torch_state_dict(optimizer_)},
                                                            {"EPOCHS_RUN", {std::int64_t{epoch + 1}}}}});
    log_rank0(world_, "Epoch %d saved to %s", epoch, snapshot_.c_str());
  }

  void load_snapshot() {
    const lockstep::Checkpoint snapshot = lockstep::load_torch_file(snapshot_);
    lockstep::load_module(snapshot, *ddp_.module(), "MODEL_STATE.");
    lockstep::load_torch_optimizer(snapshot_, optimizer_, "OPTIMIZER_STATE");
    if (!snapshot.metadata.contains("EPOCHS_RUN")) throw std::runtime_error(snapshot_.string() + " has no EPOCHS_RUN");
    epochs_run_ = std::stoi(snapshot.metadata.at("EPOCHS_RUN"));
    log_rank0(world_, "Going on from %s with epoch %d", snapshot_.c_str(), epochs_run_);
  }

  lockstep::DistributedDataParallel<torch::nn::Linear> ddp_;
  DataLoader& train_data_;
  torch::optim::Optimizer& optimizer_;
  const World& world_;
  int save_every_;
  std::filesystem::path snapshot_;
  int epochs_run_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  int total_epochs = 0, save_every = 0;
  std::size_t batch_size = 32;
  std::string snapshot = "out/snapshot.pt";
  CLI::App app("Trains a linear model, with snapshots.", "trainer");
  const auto positive = CLI::Range(1, 1'000'000'000);
  app.add_option("total_epochs", total_epochs, "number of epochs to train")->required()->check(positive);
  app.add_option("save_every", save_every, "epochs between two snapshots")->required()->check(positive);
  app.add_option("--batch-size", batch_size, "samples a step, on each rank")->check(positive)->capture_default_str();
  app.add_option("--snapshot", snapshot, "the file")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const World world = lockstep::init_process_group();
    DataLoader train_data = prepare_dataloader(Samples(2048), world, batch_size);
    torch::nn::Linear model(20, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    Trainer(model, train_data, optimizer, world, save_every, snapshot).train(total_epochs);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;
  }
}
