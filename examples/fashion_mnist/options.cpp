#include "examples/fashion_mnist/options.h"

#include <CLI/CLI.hpp>

std::optional<int> parse(int argc, char** argv, Options& options) {
  CLI::App app("Trains on Fashion-MNIST with any number of ranks: lockstep run --nproc-per-node 2 fashion_mnist",
               "fashion_mnist");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", options.model)->check(CLI::IsMember({"resnet18", "cnn", "mlp"}));
  app.add_option("--epochs", options.epochs)->check(CLI::PositiveNumber);
  app.add_option("--batch-size", options.batch_size, "images a step, over all ranks")->check(CLI::PositiveNumber);
  app.add_option("--lr", options.lr, "learning rate")->check(CLI::PositiveNumber);
  app.add_option("--momentum", options.momentum)->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed);
  app.add_option("--max-steps", options.max_steps, "stop after so many steps in all; 0: never")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--data", options.data, "directory of the IDX files; default: that of Debian's dataset-fashion-mnist");
  app.add_option("--out", options.out, "directory for checkpoints and metrics.jsonl");
  app.add_option("--checkpoint-every", options.checkpoint_every, "steps between checkpoints; 0: one an epoch")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", options.resume, "go on from the newest checkpoint in --out");
  app.add_flag("--lockstep", options.lockstep,
               "the same bits on 1, 2, 4, ... ranks; prints the SHA-256 of parameters, buffers and optimizer state");
  app.add_option("--shards", options.shards,
                 "parts of a step's images in that mode: a power of two, at least as many as ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "that a shard computes with in that mode")->check(CLI::PositiveNumber);
  app.add_option("--accumulate", options.accumulate,
                 "forwards and backwards a step, each with a part of a rank's, or shard's, images")
      ->check(CLI::PositiveNumber);
  app.add_flag("--sync-batchnorm", options.sync_batchnorm, "batch norm over the images of all ranks, or shards");
  app.add_option("--workers", options.workers, "threads that prepare batches")->check(CLI::Range(0, 64));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}
