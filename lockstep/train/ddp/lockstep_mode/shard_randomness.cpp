#include "lockstep/train/ddp/lockstep_mode/shard_randomness.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "lockstep/base/hash.h"

namespace lockstep::internal {
namespace {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

ShardRandomness::ShardRandomness(std::uint64_t seed, const Shard& shard, const std::vector<at::Device>& devices)
    : seed_(splitmix64(splitmix64(splitmix64(seed) + shard.step) + static_cast<std::uint64_t>(shard.index))),
      generator_lock_(generator_mutex(), std::defer_lock) {
  generators_.push_back({at::detail::getDefaultCPUGenerator()});
  for (const at::Device device : devices) {
    if (device.is_cuda()) generators_.push_back({at::globalContext().defaultGenerator(device)});
  }
}

void ShardRandomness::enter() {
  generator_lock_.lock();
  for (Generator& each : generators_) {
    const std::lock_guard lock(each.generator.mutex());
    each.before = each.generator.get_state();
    if (each.state.defined()) {
      each.generator.set_state(each.state);
    } else {
      each.generator.set_current_seed(seed_);
    }
  }
}

void ShardRandomness::leave() {
  if (!generator_lock_.owns_lock()) return;
  for (Generator& each : generators_) {
    const std::lock_guard lock(each.generator.mutex());
    each.state = each.generator.get_state();
    each.generator.set_state(each.before);
  }
  generator_lock_.unlock();
}

}  // namespace lockstep::internal
