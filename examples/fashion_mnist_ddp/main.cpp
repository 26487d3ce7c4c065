// The program of an article on writing DDP by hand, with its options and defaults: ResNet18 on Fashion-MNIST, plain
// stochastic gradient descent, on ranks that the program starts by itself.
//   build/bin/fashion_mnist_ddp --world-size 2
// The validation counts every image once, in evaluation mode; --article-bugs does what the article's program did. What
// came of the comparison is in docs/ARTICLE.md. Started again with the same --out, it goes on where it was.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/train.h"
#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  Options o{.epochs = 10, .workers = 4, .lr = 0.001, .momentum = 0, .resume = true, .raw_pixels = true};
  int world_size = 0;
  CLI::App app("Trains ResNet18 on Fashion-MNIST: fashion_mnist_ddp --world-size 2", "fashion_mnist_ddp");
  const auto positive = CLI::Range(1, 1'000'000'000), not_negative = CLI::Range(0, 1'000'000'000);
  app.option_defaults()->always_capture_default();
  app.add_option("--world-size", world_size, "ranks, all on this machine")->required()->check(CLI::Range(1, 1024));
  app.add_option("--batch-size", o.batch_size, "images a step, over all ranks")->check(positive);
  app.add_option("--num-epochs", o.epochs)->check(positive);
  app.add_option("--num-workers", o.workers, "threads that prepare batches")->check(CLI::Range(0, 64));
  app.add_option("--lr", o.lr, "learning rate")->check(CLI::Range(1e-30, 1e6));
  app.add_option("--seed", o.seed);
  add_device_option(app, o);
  app.add_option("--data", o.data, "directory of the IDX files");
  app.add_option("--out", o.out, "directory for checkpoints and metrics.jsonl");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps; 0: one an epoch")->check(not_negative);
  app.add_option("--max-steps", o.max_steps, "stop after so many steps in all; 0: never")->check(not_negative);
  app.add_option("--step-losses", o.step_losses, "CSV file for the loss of each step of one epoch");
  app.add_flag("--sync-batchnorm", o.sync_batchnorm, "batch norm over the images of all ranks, or shards");
  auto* lockstep = app.add_flag("--lockstep", o.lockstep, "the same bits on 1, 2 and 4 ranks");
  app.add_option("--shards", o.shards, "parts of a step in that mode: a power of two")->check(positive);
  app.add_flag("--article-bugs", o.article_bugs, "validate as the article's program did")->excludes(lockstep);
  CLI11_PARSE(app, argc, argv);
  try {
    lockstep::spawn(argc, argv, [&](int rank) { train(o, lockstep::init_process_group(init_options(o, rank))); },
                    {.nprocs = world_size});
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "fashion_mnist_ddp: %s\n", error.what());
    return 1;
  }
}
