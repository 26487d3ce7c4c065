// The command line of fashion_mnist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

struct Options {
  std::string model = "resnet18";
  int epochs = 1;
  std::size_t batch_size = 128;  // over all ranks
  double lr = 0.01;
  double momentum = 0.9;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 0;  // 0: no limit
  std::string data;
  std::string out = "out";
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch only
  bool resume = false;
  bool lockstep = false;  // the same bits at any number of ranks
  int shards = 8;         // of each step's images, in that mode
  int threads = 1;        // of a shard
  int accumulate = 1;     // forwards and backwards a step, each with a part of its images
  bool sync_batchnorm = false;
  int workers = 2;
};

// The exit code to end with, after --help or a wrong flag; empty to go on. Prints what is wrong to standard error on
// rank 0.
std::optional<int> parse(int argc, char** argv, Options& options);
