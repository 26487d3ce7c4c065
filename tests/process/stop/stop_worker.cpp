// What stop_test.py tells to stop: stop_worker loop|loader|join|never|own|usr1 MICROSECONDS
// Trains nothing: a step sleeps for so long, rank r (r + 1)-fold, and all-reduces. Prints "ready PID" once it has
// asked, and "stopped after STEP, told SIGNAL" before it ends with 0.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/stop_signal.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/data/loader.h"
#include "lockstep/train/ddp/uneven_inputs/join.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kForever = 1'000'000;

struct Steps {
  const World& world;
  const unsigned sleep_us;
  std::int64_t done = 0;

  void step() {
    ::usleep(sleep_us * static_cast<unsigned>(world.rank() + 1));
    const at::Tensor value = at::full({100}, 1.0);
    world.all_reduce(value);
    if (++done != 2) return;
    std::printf("ready %d\n", ::getpid());
    std::fflush(stdout);
  }
};

struct Numbers {
  std::size_t count;
  std::size_t size() const { return count; }
  std::int64_t get_batch(std::span<const std::int64_t> indices) const { return indices.front(); }
};

std::vector<std::int64_t> first(std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void work(const std::string& how, unsigned sleep_us) {
  InitOptions options;
  if (how == "usr1") options.stop_signals = {SIGUSR1};
  const World world = init_process_group(options);
  Steps steps{world, sleep_us};
  if (how == "own") std::signal(SIGTERM, [](int signal) { request_stop(signal); });
  if (how == "never") {
    for (;;) steps.step();
  }
  if (how == "loader") {
    const Numbers numbers{kForever};
    const auto order = first(kForever);
    const auto batches = loader(numbers, order, {.batch_size = 1, .stop_when = [&] { return world.stop_requested(); }});
    for ([[maybe_unused]] const auto& batch : batches) steps.step();
  } else if (how == "join") {
    // All but the last rank soon have no more.
    const auto mine = first(world.rank() == world.size() - 1 ? kForever : 3 * (world.rank() + 1));
    join(world, mine, [&](std::int64_t) { steps.step(); }, {.stop_with = &world});
  } else {
    while (!world.stop_requested()) steps.step();
  }
  std::printf("stopped after %ld, told %d, %s\n", static_cast<long>(steps.done), stop_signal(),
              world.stop_requested() ? "agreed" : "NOT AGREED");
}

}  // namespace

int main(int, char** argv) {
  try {
    work(argv[1], static_cast<unsigned>(std::atoi(argv[2])));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
