// Trains a model on Fashion-MNIST, data parallel over any number of ranks:
//   lockstep run --nproc-per-node 2 build/bin/fashion_mnist --model resnet18 --epochs 1
// Alone it trains on one rank; nothing else changes. SIGTERM, SIGINT and SIGHUP end it after a step, with a checkpoint.
#include <cstdio>
#include <exception>

#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/train.h"
#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  Options o;
  if (const auto exit_code = parse(argc, argv, o)) return *exit_code;
  try {
    train(o, lockstep::init_process_group(init_options(o)));
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "fashion_mnist: %s\n", error.what());
    return 1;
  }
}
