// The command line of fashion_mnist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/group/world.h"
#include "lockstep/train/data/fashion_mnist.h"

namespace CLI {
class App;
}

struct Options {
  std::string model = "resnet18", data = lockstep::FashionMnist::default_data_directory(), out = "out", device = "cpu";
  int epochs = 1, shards = 8, threads = 1, accumulate = 1, workers = 2;
  std::size_t batch_size = 128;
  double lr = 0.01, momentum = 0.9;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 0, checkpoint_every = 0;
  bool resume = false, lockstep = false, sync_batchnorm = false, augment = false;
  // Of fashion_mnist_ddp: pixels in [0, 1], the article's validation, and a file for the loss of each step.
  bool raw_pixels = false, article_bugs = false;
  std::string step_losses = {};
};

// The options that fashion_mnist_ddp has as well.
void add_shared_options(CLI::App& app, Options& o);
// rank: used only if no launcher sets the local rank of this process.
lockstep::InitOptions init_options(const Options& o, int rank = 0);

// The exit code, if the program is to end: --help, or a usage error.
std::optional<int> parse(int argc, char** argv, Options& o);
