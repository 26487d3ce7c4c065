#include "lockstep/ddp/lockstep_mode/shard_randomness.h"

#include <ATen/CPUGeneratorImpl.h>

namespace lockstep {
namespace {

// Sebastiano Vigna's splitmix64.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

ShardRandomness::ShardRandomness(std::uint64_t seed, const Shard& shard)
    : seed_(mixed(mixed(mixed(seed) + shard.step) + static_cast<std::uint64_t>(shard.index))),
      generator_lock_(generator_mutex(), std::defer_lock),
      generator_(at::detail::getDefaultCPUGenerator()) {}

void ShardRandomness::enter() {
  generator_lock_.lock();
  const std::lock_guard lock(generator_.mutex());
  before_ = generator_.get_state();
  if (state_.defined()) {
    generator_.set_state(state_);
  } else {
    generator_.set_current_seed(seed_);
  }
}

void ShardRandomness::leave() {
  if (!generator_lock_.owns_lock()) return;
  {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_state(before_);
  }
  generator_lock_.unlock();
}

}  // namespace lockstep
