// The random numbers of a shard. seed, step, index -> torch's default CPU generator, while the shard computes.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "lockstep/train/ddp/lockstep_mode/mode.h"

namespace lockstep::internal {

// Between enter() and leave() torch's default generator yields the shard's own numbers, and no other rank of this
// process uses it. Any number of times; leave() in the thread of enter().
class ShardRandomness {
 public:
  ShardRandomness(std::uint64_t seed, const Shard& shard);
  ~ShardRandomness() { leave(); }
  ShardRandomness(const ShardRandomness&) = delete;
  ShardRandomness& operator=(const ShardRandomness&) = delete;

  void enter();
  void leave();

 private:
  const std::uint64_t seed_;
  std::unique_lock<std::mutex> generator_lock_;  // for shards of all ranks in this process
  at::Generator generator_;
  at::Tensor before_;  // state of the generator at enter()
  at::Tensor state_;   // of the shard, at leave()
};

}  // namespace lockstep::internal
