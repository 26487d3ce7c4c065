// Trains a model on Fashion-MNIST, data parallel over any number of ranks:
//   lockstep run --nproc-per-node 2 build/bin/fashion_mnist --model resnet18 --epochs 1
// Alone it trains on one rank; nothing else changes.
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <exception>

#include "examples/models/cnn.h"
#include "examples/models/mlp.h"
#include "examples/models/resnet18.h"
#include "lockstep/lockstep.h"

namespace {

using namespace lockstep;

struct Options {
  std::string model = "resnet18", data = FashionMnist::default_data_directory(), out = "out";
  int epochs = 1, shards = 8, threads = 1, accumulate = 1, workers = 2;
  std::size_t batch_size = 128;
  double lr = 0.01, momentum = 0.9;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 0, checkpoint_every = 0;
  bool resume = false, lockstep = false, sync_batchnorm = false;
};

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& y) { return at::cross_entropy_loss(logits, y); }

std::array<double, 2> loss_and_accuracy(const at::Tensor& logits, const at::Tensor& y) {
  return {loss_of(logits, y).item<double>(), logits.argmax(1).eq(y).to(at::kDouble).mean().item<double>()};
}

// The steps that are left of an epoch, up to --max-steps. In lockstep mode a step has a batch for every shard.
template <class Ddp>
void train_epoch(Ddp& ddp, torch::optim::SGD& optimizer, TrainingRun& run, const FashionMnist& images,
                 const FashionMnist& test, const Options& o, const World& world) {
  const auto& at = run.position;
  const int shards = o.lockstep ? o.shards : 0;  // 0: every rank has one batch a step
  const auto batch_size = BatchSize::global(o.batch_size);
  const std::size_t local = batch_size.local(o.lockstep ? shards : world.size());
  ShardSampler sampler(images.size(), world, {.shards = shards, .batch_size = local, .seed = o.seed});
  sampler.set_epoch(at.epoch);
  const auto batches =
      shard_loader(images, sampler, {.workers = o.workers, .first_batch = static_cast<std::size_t>(at.batch)});
  const std::int64_t left = static_cast<std::int64_t>(sampler.steps()) - at.batch;
  const std::int64_t steps = o.max_steps == 0 ? left : std::min(left, o.max_steps - at.step);
  Progress progress(world, "epoch " + std::to_string(at.epoch + 1) + "/" + std::to_string(o.epochs), steps);
  Throughput speed(ddp);
  auto batch = batches.begin();
  for (std::int64_t step = 1; step <= steps; ++step) {
    std::int64_t samples = 0;
    const auto backward = [&](const Shard&) {
      const auto [x, y] = std::move(*batch);
      ++batch;  // before the forward, in which the next shard's may begin
      samples += y.numel();
      return backward_in_parts(ddp, x, y, o.accumulate, loss_of);
    };
    if (!o.lockstep) optimizer.zero_grad();
    const double loss = o.lockstep ? ddp.for_each_shard(backward) : backward({});
    optimizer.step();
    run.add_step(loss, samples, ddp, optimizer);
    speed.add(samples);
    progress.show(step, "loss %.4f  %.0f images/s  communication %.1f%%", at.mean_loss(), speed.samples_per_second(),
                  100 * speed.communication_share());
  }
  progress.finish();
  const auto [val_loss, val_accuracy] = evaluate(
      ddp, test, world, {.batch_size = batch_size.local(world.size()), .workers = o.workers}, loss_and_accuracy);
  speed = speed.over_all_ranks();
  const double loss = run.mean_loss(), rate = speed.samples_per_second(), share = speed.communication_share();
  run.log_metrics({{"train_loss", loss},
                   {"val_loss", val_loss},
                   {"val_accuracy", val_accuracy},
                   {"samples_per_second", rate},
                   {"communication_share", share}});
  log_rank0(
      world,
      "Iteration %d/%d  Train Loss: %.4f  Val Loss: %.4f  Val Accuracy: %.4f  %.0f images/s  communication %.1f%%",
      at.epoch + 1, o.epochs, loss, val_loss, val_accuracy, rate, 100 * share);
  if (steps == left) run.position.begin_next_epoch();
  run.save(ddp, optimizer);
}

template <class Model>
void train(Model model, const Options& o, const World& world) {
  const FashionMnistOptions layout{.channels = o.model == "resnet18" ? 3 : 1};
  const auto images = FashionMnist::load(o.data, FashionMnist::Split::train, layout);
  const auto test = FashionMnist::load(o.data, FashionMnist::Split::test, layout);
  log_rank0(world, "training %s on %zu images, %d ranks over %s, %zu images a step", o.model.c_str(), images.size(),
            world.size(), std::string(world.transport()).c_str(), o.batch_size);
  std::map<std::string, std::string> choices{{"model", o.model}, {"sync_batchnorm", o.sync_batchnorm ? "yes" : "no"}};
  choices.insert({{"batch_size", std::to_string(o.batch_size)}, {"seed", std::to_string(o.seed)}});
  choices.insert({"accumulate", std::to_string(o.accumulate)});
  TrainingRun run(world, {o.out, choices, {{"accumulate", "1"}, {"sync_batchnorm", "no"}}, 3, o.checkpoint_every});
  if (o.sync_batchnorm) convert_sync_batchnorm(model, world);
  DistributedDataParallel ddp(model, world, {.lockstep = {o.lockstep ? o.shards : 0, o.seed, o.threads}});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(o.lr).momentum(o.momentum));
  if (o.resume) log_rank0(world, "resumed after step %ld", run.resume(ddp, optimizer).step);
  if (!o.resume) run.start_anew();
  const auto start = lockstep::steady_clock().now();
  while (run.position.epoch < o.epochs && (o.max_steps == 0 || run.position.step < o.max_steps)) {
    train_epoch(ddp, optimizer, run, images, test, o, world);
  }
  log_rank0(world, "Completed training in %.1f seconds.", seconds(lockstep::steady_clock().now() - start));
  if (o.lockstep) log_rank0(world, "SHA-256 of the run: %s", sha256_of(*model, optimizer).c_str());
  log_rank0(world, "checkpoint: %s", run.path().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains on Fashion-MNIST: lockstep run --nproc-per-node 2 fashion_mnist", "fashion_mnist");
  Options o;
  const auto positive = CLI::PositiveNumber, not_negative = CLI::NonNegativeNumber;
  app.option_defaults()->always_capture_default();
  app.add_option("--model", o.model)->check(CLI::IsMember({"resnet18", "cnn", "mlp"}));
  app.add_option("--epochs", o.epochs)->check(positive);
  app.add_option("--batch-size", o.batch_size, "images a step, over all ranks")->check(positive);
  app.add_option("--lr", o.lr, "learning rate")->check(positive);
  app.add_option("--momentum", o.momentum)->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", o.seed);
  app.add_option("--max-steps", o.max_steps, "stop after so many steps in all; 0: never")->check(not_negative);
  app.add_option("--data", o.data, "directory of the IDX files");
  app.add_option("--out", o.out, "directory for checkpoints and metrics.jsonl");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps; 0: one an epoch")->check(not_negative);
  app.add_flag("--resume", o.resume,
               "go on from the newest checkpoint in --out; without it the first new one replaces those");
  app.add_flag("--lockstep", o.lockstep, "the same bits on 1, 2, 4, ... ranks; prints the SHA-256 of the run");
  app.add_option("--shards", o.shards, "parts of a step in that mode: a power of two")->check(positive);
  app.add_option("--threads", o.threads, "that a shard computes with in that mode")->check(positive);
  app.add_option("--accumulate", o.accumulate, "parts of a step's images, one after the other")->check(positive);
  app.add_flag("--sync-batchnorm", o.sync_batchnorm, "batch norm over the images of all ranks, or shards");
  app.add_option("--workers", o.workers, "threads that prepare batches")->check(CLI::Range(0, 64));
  try {
    app.parse(argc, argv);
    const World world = init_process_group();
    seed_all(o.seed);
    if (o.model == "resnet18") train(models::ResNet18(FashionMnist::kClasses), o, world);
    if (o.model == "cnn") train(models::Cnn(FashionMnist::kClasses), o, world);
    if (o.model == "mlp") train(models::Mlp(), o, world);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 1;
  }
}
