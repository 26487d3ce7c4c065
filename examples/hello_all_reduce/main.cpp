// The smallest program: every rank contributes a number, every rank gets the sum.
//   lockstep run --nproc-per-node 3 build/bin/hello_all_reduce
#include <cstdio>
#include <exception>

#include "lockstep/lockstep.h"

int main() {
  try {
    const auto world = lockstep::init_process_group();
    double value = world.rank() + 1;
    world.all_reduce(value);
    std::printf("rank %d of %d sees the sum %g over %s\n", world.rank(), world.size(), value,
                std::string(world.transport()).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hello_all_reduce: %s\n", error.what());
    return 1;
  }
}
