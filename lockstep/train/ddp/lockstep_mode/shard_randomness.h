// The random numbers of a shard. seed, step, index -> torch's default generators, while the shard computes.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "lockstep/train/ddp/lockstep_mode/mode.h"

namespace lockstep::internal {

// Between enter() and leave() torch's default generators yield the shard's own numbers, and no other rank of this
// process uses them. Any number of times; leave() in the thread of enter().
class ShardRandomness {
 public:
  ShardRandomness(std::uint64_t seed, const Shard& shard, const std::vector<at::Device>& devices = {});
  ~ShardRandomness() { leave(); }
  ShardRandomness(const ShardRandomness&) = delete;
  ShardRandomness& operator=(const ShardRandomness&) = delete;

  void enter();
  void leave();

 private:
  const std::uint64_t seed_;
  std::unique_lock<std::mutex> generator_lock_;  // for shards of all ranks in this process
  struct Generator {
    at::Generator generator;
    at::Tensor before = {};  // its state at enter()
    at::Tensor state = {};   // of the shard, at leave()
  };
  std::vector<Generator> generators_;  // torch's default ones, of the host and of devices that have one
};

}  // namespace lockstep::internal
