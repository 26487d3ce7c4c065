// Trains a model on Fashion-MNIST, data parallel over any number of ranks:
//   lockstep run --nproc-per-node 2 build/bin/fashion_mnist --model resnet18 --epochs 1
// Alone it trains on one rank; nothing else changes.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "examples/fashion_mnist/metrics.h"
#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/progress.h"
#include "examples/fashion_mnist/run_state.h"
#include "examples/models/cnn.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "lockstep/lockstep.h"

namespace {

using lockstep::FashionMnist;
using Seconds = std::chrono::duration<double>;

struct Evaluation {
  double loss = 0;
  double accuracy = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) { return Seconds(std::chrono::steady_clock::now() - start).count(); }

// The sums of these numbers over all ranks.
std::vector<double> sum_over_ranks(const lockstep::World& world, std::vector<double> values) {
  const at::Tensor sums = at::tensor(values, at::kDouble);
  world.group().all_reduce(sums);
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

// Every test image counts once, whatever the number of ranks.
template <class Model>
Evaluation evaluate(Model& ddp, const FashionMnist& test, const Options& options, std::size_t batch_size, const lockstep::World& world) {
  ddp.eval();
  const at::NoGradGuard no_grad;
  lockstep::DistributedSampler sampler(test.size(), world, {.shuffle = false, .padding = lockstep::Padding::none});
  double loss = 0;
  double correct = 0;
  double count = 0;
  for (auto& [x, y] : lockstep::loader(test, sampler, {.batch_size = batch_size, .workers = options.workers})) {
    const at::Tensor logits = ddp(x);
    loss += at::cross_entropy_loss(logits, y).template item<double>() * static_cast<double>(y.numel());
    correct += static_cast<double>(logits.argmax(1).eq(y).sum().template item<std::int64_t>());
    count += static_cast<double>(y.numel());
  }
  ddp.train();
  const auto sums = sum_over_ranks(world, {loss, correct, count});
  return {sums[0] / sums[2], sums[1] / sums[2]};
}

template <class Model>
void train(Model model, const Options& options, const FashionMnist& images, const FashionMnist& test, const lockstep::World& world) {
  const std::size_t local_batch = lockstep::BatchSize::global(options.batch_size).local(world.size());
  const std::filesystem::path out = options.out;
  if (world.is_main_rank()) std::filesystem::create_directories(out);

  lockstep::DistributedDataParallel ddp(model, world.group());
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum));
  lockstep::DistributedSampler sampler(images.size(), world, {.shuffle = true, .seed = options.seed});
  RunState state = options.resume ? load_run(out, options, *model, optimizer, world) : RunState{};
  if (world.is_main_rank() && options.resume) std::printf("resumed after step %ld\n", static_cast<long>(state.step));

  const auto begin = std::chrono::steady_clock::now();
  const auto limit_reached = [&] { return options.max_steps != 0 && state.step >= options.max_steps; };
  for (; state.epoch < options.epochs && !limit_reached(); ++state.epoch, state.batch = 0, state.loss_sum = 0, state.samples = 0) {
    sampler.set_epoch(state.epoch);
    const auto batches = lockstep::loader(
        images, sampler,
        {.batch_size = local_batch, .workers = options.workers, .first_batch = static_cast<std::size_t>(state.batch)});
    const auto remaining = static_cast<std::int64_t>(batches.size());
    const std::int64_t steps = options.max_steps == 0 ? remaining : std::min(remaining, options.max_steps - state.step);
    Progress progress(state.epoch, options.epochs, steps);
    const auto start = std::chrono::steady_clock::now();
    const double communicated = ddp.stats().communication_seconds;
    const auto communication_share = [&] { return (ddp.stats().communication_seconds - communicated) / seconds_since(start); };
    std::int64_t trained = 0;
    std::int64_t done = 0;
    for (auto& [x, y] : batches) {
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(ddp(x), y);
      loss.backward();
      optimizer.step();

      state.loss_sum += loss.template item<double>() * static_cast<double>(y.numel());
      state.samples += y.numel();
      trained += y.numel();
      ++state.step;
      ++state.batch;
      ++done;
      if (world.is_main_rank()) {
        progress.update(done, state.loss_sum / static_cast<double>(state.samples),
                        static_cast<double>(trained * world.size()) / seconds_since(start), communication_share());
      }
      if (options.checkpoint_every != 0 && state.step % options.checkpoint_every == 0) save_run(out, state, options, *model, optimizer, world);
      if (limit_reached()) break;
    }
    const double training_seconds = seconds_since(start);
    const double share = communication_share();
    if (world.is_main_rank()) progress.finish();

    const Evaluation evaluation = evaluate(ddp, test, options, local_batch, world);
    const auto sums = sum_over_ranks(world, {state.loss_sum, static_cast<double>(state.samples), static_cast<double>(trained), share});
    if (world.is_main_rank()) {
      const EpochMetrics metrics{.epoch = state.epoch, .train_loss = sums[0] / sums[1], .val_loss = evaluation.loss,
                                 .val_accuracy = evaluation.accuracy, .samples_per_second = sums[2] / training_seconds,
                                 .communication_share = sums[3] / world.size(), .world_size = world.size()};
      append_metrics(out / "metrics.jsonl", metrics);
      std::printf("Iteration %d/%d  Train Loss: %.4f  Val Loss: %.4f  Val Accuracy: %.4f  %.0f images/s  communication %.1f%%\n",
                  state.epoch + 1, options.epochs, metrics.train_loss, metrics.val_loss, metrics.val_accuracy, metrics.samples_per_second,
                  metrics.communication_share * 100);
    }
    RunState reached = state;
    if (done == remaining) reached = {.step = state.step, .epoch = state.epoch + 1};
    save_run(out, reached, options, *model, optimizer, world);
  }
  if (world.is_main_rank()) {
    std::printf("Completed training in %.1f seconds.\n", seconds_since(begin));
    std::printf("checkpoint: %s\n", lockstep::step_path(out, static_cast<std::uint64_t>(state.step)).c_str());
  }
}

void run(const Options& options) {
  const auto world = lockstep::init_process_group();
  const std::filesystem::path data = options.data.empty() ? FashionMnist::default_data_directory() : std::filesystem::path(options.data);
  const lockstep::FashionMnistOptions layout{.channels = options.model == "resnet18" ? 3 : 1};
  const FashionMnist images = FashionMnist::load(data, FashionMnist::Split::train, layout);
  const FashionMnist test = FashionMnist::load(data, FashionMnist::Split::test, layout);
  if (world.is_main_rank()) {
    std::printf("training %s on %zu images, %d ranks over %s, %zu images a step\n", options.model.c_str(), images.size(), world.size(),
                std::string(world.group().transport()).c_str(), options.batch_size);
    std::fflush(stdout);
  }
  torch::manual_seed(options.seed);
  if (options.model == "resnet18") train(models::ResNet18(FashionMnist::kClasses), options, images, test, world);
  if (options.model == "cnn") train(models::Cnn(FashionMnist::kClasses), options, images, test, world);
  if (options.model == "mlp") train(models::Mlp(), options, images, test, world);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (const auto code = parse(argc, argv, options)) return *code;
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 1;
  }
}
