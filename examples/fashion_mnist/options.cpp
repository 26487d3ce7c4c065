#include "examples/fashion_mnist/options.h"

#include <torch/cuda.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "lockstep/lockstep.h"

namespace {

constexpr int kMost = 1'000'000'000;

// range: "0 to 1", in words.
CLI::Validator between(double least, double most, const std::string& range) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool is_within = *end == '\0' && value >= least && value <= most;  // and no NaN
        return is_within ? "" : text + " is not a number from " + range;
      },
      "from " + range);
}

}  // namespace

void add_shared_options(CLI::App& app, Options& o) {
  const auto not_negative = CLI::Range(0, kMost);
  app.add_option("--batch-size", o.batch_size, "images a step, over all ranks")->check(CLI::Range(1, kMost));
  app.add_option("--lr", o.lr, "learning rate")->check(between(1e-30, 1e6, "1e-30 to 1e6"));
  app.add_option("--seed", o.seed)->check(between(0, 1e18, "0 to 1e18"));
  app.add_option("--max-steps", o.max_steps, "stop after this total number of steps; 0: never")->check(not_negative);
  app.add_option("--data", o.data, "directory of the IDX files");
  app.add_option("--out", o.out, "directory for checkpoints and metrics.jsonl");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps; 0: one an epoch")->check(not_negative);
  app.add_option("--shards", o.shards, "parts of a step in lockstep mode: a power of two")->check(CLI::Range(1, kMost));
  app.add_flag("--sync-batchnorm", o.sync_batchnorm, "batch norm over the images of all ranks, or shards");
  app.add_option("--device", o.device, "cuda: each rank takes a GPU of its host")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

lockstep::InitOptions init_options(const Options& o, int rank) {
  if (o.device == "cpu") return {};
  const int gpu = lockstep::local_device(rank, static_cast<int>(torch::cuda::device_count()));
  return {.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu))};
}

std::optional<int> parse(int argc, char** argv, Options& o) {
  CLI::App app("Trains on Fashion-MNIST: lockstep run --nproc-per-node 2 fashion_mnist", "fashion_mnist");
  const auto positive = CLI::Range(1, kMost);
  app.option_defaults()->always_capture_default();
  app.add_option("--model", o.model)->check(CLI::IsMember({"resnet18", "cnn", "mlp"}));
  app.add_option("--epochs", o.epochs)->check(positive);
  app.add_option("--momentum", o.momentum)->check(between(0, 1, "0 to 1"));
  app.add_flag("--resume", o.resume,
               "resume from the newest checkpoint in --out, if any; without this, new ones replace those");
  app.add_flag("--lockstep", o.lockstep, "the same bits on 1, 2, 4, ... ranks; prints the SHA-256 of the run");
  app.add_option("--threads", o.threads, "threads of a shard in lockstep mode")->check(CLI::Range(1, 1024));
  app.add_option("--accumulate", o.accumulate, "parts of a step's images, one after the other")->check(positive);
  app.add_flag("--augment", o.augment, "images are moved by up to two pixels, and half of them mirrored");
  app.add_option("--workers", o.workers, "threads that prepare batches")->check(CLI::Range(0, 64));
  add_shared_options(app, o);
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
}
