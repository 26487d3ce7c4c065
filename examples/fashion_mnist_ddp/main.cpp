// The program of an article on writing DDP by hand, with its options and defaults: ResNet18 on Fashion-MNIST, plain
// stochastic gradient descent, on ranks that the program starts by itself.
//   build/bin/fashion_mnist_ddp --world-size 2
// The validation counts every image once, in evaluation mode; --article-bugs does what the article's program did. The
// results are in docs/ARTICLE.md. Started again with the same --out, it continues where it was.
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
  app.option_defaults()->always_capture_default();
  app.add_option("--world-size", world_size, "ranks, all on this machine")->required()->check(CLI::Range(1, 1024));
  app.add_option("--num-epochs", o.epochs)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--num-workers", o.workers, "threads that prepare batches")->check(CLI::Range(0, 64));
  app.add_option("--step-losses", o.step_losses, "CSV file for the loss of each step of one epoch");
  auto* lockstep = app.add_flag("--lockstep", o.lockstep, "the same bits on 1, 2 and 4 ranks");
  app.add_flag("--article-bugs", o.article_bugs, "validate as the article's program did")->excludes(lockstep);
  add_shared_options(app, o);
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
