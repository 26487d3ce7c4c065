#include "lockstep/train/ddp/lockstep_mode/shard_randomness.h"

#include <ATen/CPUGeneratorImpl.h>

#include "lockstep/base/hash.h"

namespace lockstep::internal {
namespace {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

ShardRandomness::ShardRandomness(std::uint64_t seed, const Shard& shard)
    : seed_(splitmix64(splitmix64(splitmix64(seed) + shard.step) + static_cast<std::uint64_t>(shard.index))),
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

}  // namespace lockstep::internal
