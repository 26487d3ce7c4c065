// Trains a model on Fashion-MNIST, data parallel over any number of ranks:
//   lockstep run --nproc-per-node 2 build/bin/fashion_mnist --model resnet18 --epochs 1
// Alone it trains on one rank; nothing else changes.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

// The sums of these numbers over all ranks.
std::vector<double> sum_over_ranks(const lockstep::World& world, std::vector<double> values) {
  const at::Tensor sums = at::tensor(values, at::kDouble);
  world.group().all_reduce(sums);
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

// Every test image counts once, whatever the number of ranks.
template <class Model>
Evaluation evaluate(Model& ddp, const FashionMnist& test, const Options& options, std::size_t batch_size,
                    const lockstep::World& world) {
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

// One pass over this rank's part of the training images, or what is left of it.
struct Pass {
  std::int64_t trained = 0;  // images, on this rank
  double seconds = 0;
  double communication_share = 0;
  bool complete = false;  // not cut short by --max-steps
};

struct StepResult {
  double loss = 0;           // mean over the images below
  std::int64_t samples = 0;  // images, on this rank
};

// Calls `step` once for each of the remaining steps of the epoch and does what is due after each.
template <class Model, class Ddp, class Step>
Pass train_steps(std::int64_t remaining, Step step, Model& model, Ddp& ddp, const torch::optim::SGD& optimizer,
                 const Options& options, RunState& state, const lockstep::World& world) {
  const std::int64_t steps = options.max_steps == 0 ? remaining : std::min(remaining, options.max_steps - state.step);
  Progress progress(state.epoch, options.epochs, steps);
  Pass pass;
  const auto start = std::chrono::steady_clock::now();
  const double communicated = ddp.stats().communication_seconds;
  for (std::int64_t done = 1; done <= steps; ++done) {
    const StepResult result = step();
    state.loss_sum += result.loss * static_cast<double>(result.samples);
    state.samples += result.samples;
    ++state.step;
    ++state.batch;
    pass.trained += result.samples;
    pass.seconds = seconds_since(start);
    pass.communication_share = (ddp.stats().communication_seconds - communicated) / pass.seconds;
    if (world.is_main_rank()) {
      progress.update(done, state.loss_sum / static_cast<double>(state.samples),
                      static_cast<double>(pass.trained * world.size()) / pass.seconds, pass.communication_share);
    }
    if (options.checkpoint_every != 0 && state.step % options.checkpoint_every == 0) {
      save_run(options.out, state, options, *model, optimizer, world);
    }
  }
  pass.complete = steps == remaining;
  if (world.is_main_rank()) progress.finish();
  return pass;
}

// The mean loss of a batch. Its gradients are added up over as many parts as there are to be; where a rank has all of
// a batch to itself, they are averaged over the ranks with the last one.
template <class Ddp>
double backward_of(Ddp& ddp, const at::Tensor& x, const at::Tensor& y, int parts) {
  const std::vector<at::Tensor> xs = x.chunk(parts), ys = y.chunk(parts);
  double sum = 0;
  const auto backward_of_part = [&](std::size_t part) {
    const double share = static_cast<double>(ys[part].numel()) / static_cast<double>(y.numel());
    const at::Tensor loss = at::cross_entropy_loss(ddp(xs[part]), ys[part]) * share;
    loss.backward();
    sum += loss.template item<double>();
  };
  {
    const auto guard = ddp.no_sync();
    for (std::size_t part = 0; part + 1 < xs.size(); ++part) backward_of_part(part);
  }
  backward_of_part(xs.size() - 1);
  return sum;
}

template <class Model, class Ddp>
Pass train_epoch(Model& model, Ddp& ddp, torch::optim::SGD& optimizer, const FashionMnist& images,
                 const Options& options, RunState& state, const lockstep::World& world) {
  lockstep::DistributedSampler sampler(images.size(), world, {.shuffle = true, .seed = options.seed});
  sampler.set_epoch(state.epoch);
  const auto batches =
      lockstep::loader(images, sampler,
                       {.batch_size = lockstep::BatchSize::global(options.batch_size).local(world.size()),
                        .workers = options.workers,
                        .first_batch = static_cast<std::size_t>(state.batch)});
  auto batch = batches.begin();
  const auto step = [&] {
    auto& [x, y] = *batch;
    optimizer.zero_grad();
    const StepResult result{backward_of(ddp, x, y, options.accumulate), y.numel()};
    optimizer.step();
    ++batch;
    return result;
  };
  const auto remaining = static_cast<std::int64_t>(batches.size());
  return train_steps(remaining, step, model, ddp, optimizer, options, state, world);
}

// The same in lockstep mode: a batch is a shard's.
template <class Model, class Ddp>
Pass train_epoch_in_shards(Model& model, Ddp& ddp, torch::optim::SGD& optimizer, const FashionMnist& images,
                           const Options& options, RunState& state, const lockstep::World& world) {
  lockstep::ShardSampler sampler(images.size(), world,
                                 {.shards = options.shards,
                                  .batch_size = lockstep::BatchSize::global(options.batch_size).local(options.shards),
                                  .seed = options.seed});
  sampler.set_epoch(state.epoch);
  const auto batches = lockstep::shard_loader(
      images, sampler, {.workers = options.workers, .first_batch = static_cast<std::size_t>(state.batch)});
  auto batch = batches.begin();
  const auto step = [&] {
    StepResult result;
    result.loss = ddp.for_each_shard([&](const lockstep::Shard&) {
      // Before the forward, in which the next shard's callback may begin.
      const auto [x, y] = std::move(*batch);
      ++batch;
      result.samples += y.numel();
      return backward_of(ddp, x, y, options.accumulate);
    });
    optimizer.step();
    return result;
  };
  const auto remaining = static_cast<std::int64_t>(sampler.steps()) - state.batch;
  return train_steps(remaining, step, model, ddp, optimizer, options, state, world);
}

void report(const Options& options, const RunState& state, const Pass& pass, const Evaluation& evaluation,
            const lockstep::World& world) {
  const auto sums = sum_over_ranks(world, {state.loss_sum, static_cast<double>(state.samples),
                                           static_cast<double>(pass.trained), pass.communication_share});
  if (!world.is_main_rank()) return;
  const EpochMetrics metrics{.epoch = state.epoch,
                             .train_loss = sums[0] / sums[1],
                             .val_loss = evaluation.loss,
                             .val_accuracy = evaluation.accuracy,
                             .samples_per_second = sums[2] / pass.seconds,
                             .communication_share = sums[3] / world.size(),
                             .world_size = world.size()};
  append_metrics(std::filesystem::path(options.out) / "metrics.jsonl", metrics);
  std::printf(
      "Iteration %d/%d  Train Loss: %.4f  Val Loss: %.4f  Val Accuracy: %.4f  %.0f images/s  communication %.1f%%\n",
      state.epoch + 1, options.epochs, metrics.train_loss, metrics.val_loss, metrics.val_accuracy,
      metrics.samples_per_second, metrics.communication_share * 100);
}

// Of parameters, buffers and optimizer state.
std::string digest_of(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  lockstep::Checkpoint state;
  lockstep::add_module(state, model);
  lockstep::add_optimizer(state, optimizer);
  return lockstep::sha256_of(state);
}

template <class Model>
void train(Model model, const Options& options, const FashionMnist& images, const FashionMnist& test,
           const lockstep::World& world) {
  const std::size_t local_batch = lockstep::BatchSize::global(options.batch_size).local(world.size());
  if (world.is_main_rank()) prepare_output(options.out);

  if (options.sync_batchnorm) lockstep::convert_sync_batchnorm(model, world.group());
  lockstep::DdpOptions ddp_options;
  if (options.lockstep) {
    ddp_options.lockstep = {.shards = options.shards, .seed = options.seed, .threads = options.threads};
  }
  lockstep::DistributedDataParallel ddp(model, world.group(), ddp_options);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum));
  RunState state = options.resume ? load_run(options.out, options, *model, optimizer, world) : RunState{};
  if (options.lockstep) {
    const lockstep::LockstepState now = ddp.lockstep_state();
    if (options.resume) {
      ddp.load_lockstep_state({.step = static_cast<std::uint64_t>(state.step),
                               .shards = options.shards,
                               .seed = options.seed,
                               .threads = state.threads,
                               .arithmetic = state.arithmetic});
    }
    state.threads = now.threads;
    state.arithmetic = now.arithmetic;
  }
  if (options.resume && world.is_main_rank()) std::printf("resumed after step %ld\n", static_cast<long>(state.step));

  const auto begin = std::chrono::steady_clock::now();
  while (state.epoch < options.epochs && (options.max_steps == 0 || state.step < options.max_steps)) {
    const Pass pass = options.lockstep ? train_epoch_in_shards(model, ddp, optimizer, images, options, state, world)
                                       : train_epoch(model, ddp, optimizer, images, options, state, world);
    const Evaluation evaluation = evaluate(ddp, test, options, local_batch, world);
    report(options, state, pass, evaluation, world);
    if (pass.complete) {
      state = {.step = state.step, .epoch = state.epoch + 1, .threads = state.threads, .arithmetic = state.arithmetic};
    }
    save_run(options.out, state, options, *model, optimizer, world);
    if (!pass.complete) break;
  }
  if (world.is_main_rank()) {
    std::printf("Completed training in %.1f seconds.\n", seconds_since(begin));
    if (options.lockstep) std::printf("SHA-256 of the run: %s\n", digest_of(*model, optimizer).c_str());
    std::printf("checkpoint: %s\n", lockstep::step_path(options.out, static_cast<std::uint64_t>(state.step)).c_str());
  }
}

void run(const Options& options) {
  const auto world = lockstep::init_process_group();
  const std::filesystem::path data =
      options.data.empty() ? FashionMnist::default_data_directory() : std::filesystem::path(options.data);
  const lockstep::FashionMnistOptions layout{.channels = options.model == "resnet18" ? 3 : 1};
  const FashionMnist images = FashionMnist::load(data, FashionMnist::Split::train, layout);
  const FashionMnist test = FashionMnist::load(data, FashionMnist::Split::test, layout);
  if (world.is_main_rank()) {
    std::printf("training %s on %zu images, %d ranks over %s, %zu images a step\n", options.model.c_str(),
                images.size(), world.size(), std::string(world.group().transport()).c_str(), options.batch_size);
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
