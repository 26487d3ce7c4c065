// The shards of one rank's step, all under way at once, for models with layers that need numbers of all shards in the
// middle of forward and backward. ShardedStep -> ShardExchange -> a thread a shard -> layer -> gather().
//
// One thread runs at a time, in the order of shards: the one that holds the token. It passes the token on when it
// reaches such a layer, or its end. When the rank's last shard has reached a layer, one collective brings the numbers
// of all shards of all ranks, and the first shard gets the token again. So whatever the number of ranks, a layer gets
// the same rows. Waiting for the token needs no deadline: operations that block its holder have their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <exception>
#include <functional>
#include <semaphore>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"

namespace at {
class ThreadLocalState;
}

namespace lockstep::internal {

// While it exists, its thread is in the callback of a shard that computes by itself, and gather() is out of reach.
class IsolatedShard {
 public:
  IsolatedShard();
  ~IsolatedShard();
  IsolatedShard(const IsolatedShard&) = delete;
  IsolatedShard& operator=(const IsolatedShard&) = delete;
};

class ShardExchange {
 public:
  // Called with the shard's position in its rank, in its thread.
  using OfShard = std::function<void(int)>;

  // This rank has `own` shards, from `first` on; the other ranks have as many.
  ShardExchange(ProcessGroup group, int first, int own);

  // Calls `body` for each shard of this rank, in a thread with the caller's torch settings, number of threads and current
  // streams of the devices, and returns when all have ended. resume, suspend: called when the shard gets the token and before it passes it on. An
  // exception of one ends all shards: on this rank it is thrown here, in gather(), and finally by run(); the group is
  // aborted with its text, unless this rank is alone. Error{desync} if shards do not all reach the same layers in the
  // same order. Once.
  void run(const OfShard& body, OfShard resume, OfShard suspend, const std::vector<at::Device>& devices = {});

  // Whether the calling thread is in the callback of a shard, of any wrapper.
  static bool is_within_shard();
  // The exchange of the shard that the calling thread computes; null if it computes none. Error{invalid_argument} in an
  // isolated shard.
  static ShardExchange* current();

  // row: one number or more, the same count and type in all shards. Returns those of all shards, a row each, in their
  // order; not to be written to. layer: the caller; null if it has no name. what: "SyncBatchNorm statistics". Blocks
  // until all shards of all ranks are there; fails as ProcessGroup::all_gather_into, or with another shard's failure.
  // REQUIRES: this is current().
  at::Tensor gather(const at::Tensor& row, const SyncBatchNormTag* layer, std::string_view what);

  double communication_seconds() const { return communication_seconds_; }

 private:
  struct Settings;
  void run_shard(int shard, const OfShard& body, const Settings& settings);
  void come_to(int shard, const std::string& place);
  void gather_from_ranks(int shard);
  void pass_token(int shard);
  void fail(int shard, std::exception_ptr failure);

  const ProcessGroup group_;
  const int first_, own_;
  OfShard resume_, suspend_;
  std::deque<std::binary_semaphore> tokens_;  // by shard; released: it holds the token
  // Below: belongs to the shard that holds the token.
  std::vector<bool> is_over_;
  std::string place_;    // where the first shard is
  at::Tensor own_rows_;  // of this rank's shards at that place
  at::Tensor rows_;      // of all shards at the last place
  std::exception_ptr failure_;
  double communication_seconds_ = 0;
};

}  // namespace lockstep::internal
