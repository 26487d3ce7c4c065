// Lockstep mode: training whose bits do not depend on the number of ranks. The global batch is cut into a fixed number
// of shards; each rank computes its share of them one by one, and gradients, buffers and losses are averaged in one
// fixed binary tree over shards, first within a rank, then over ranks. Random numbers and batch-norm statistics belong
// to the shard. callback per shard -> ShardedStep -> .grad, buffers -> optimizer.step().
//
// If the model has synchronised batch norms (sync_batch_norm_tag.h), their statistics are those of all shards together.
// Then the callbacks of a rank's shards are all under way at once, each in its own thread, of which one runs at a time
// (shard_exchange.h); so a rank needs memory for the activations and gradients of all of its shards.
//
//   lockstep::DistributedDataParallel ddp(model, world.group(), {.lockstep = {.shards = 8, .seed = 1}});
//   const double loss = ddp.for_each_shard([&](lockstep::Shard shard) {
//     auto [x, y] = batch_of(shard);
//     const at::Tensor loss = cross_entropy(ddp(x), y);
//     loss.backward();
//     return loss.item<double>();
//   });
//   optimizer.step();
//
// A shard computes with LockstepMode::threads threads; ranks compare all else that the bits depend on (arithmetic.h).
// The program must provide: a callback whose outcome depends on the shard (its index, its step, its data) and on the
// model; between the steps only code whose bits do not depend on the number of threads, as elementwise optimizers and
// clip_grad_norm() have; and the same kind of machine. With synchronised batch norms also: data fetched before the
// first forward, where other shards continue; the same layers in the same order in every shard, forwards and backwards
// in the callback's own thread, and no lock held over them. Thread rule: as DdpBase. Ranks that are threads of one
// process alternate, shard by shard; a callback must then not wait for others, except in a synchronised batch norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/transport/arena_heap.h"
#include "lockstep/train/ddp/autograd/backward_watch.h"
#include "lockstep/train/ddp/autograd/forward_graphs.h"
#include "lockstep/train/ddp/checks/model_comparison.h"
#include "lockstep/train/ddp/lockstep_mode/arithmetic.h"
#include "lockstep/train/ddp/lockstep_mode/mode.h"
#include "lockstep/train/ddp/lockstep_mode/shard_buffers.h"
#include "lockstep/train/ddp/lockstep_mode/shard_tree.h"
#include "lockstep/train/ddp/lockstep_mode/sync_batch_norm_tag.h"

namespace torch::nn {
class Module;
}

namespace lockstep::internal {

class ShardedStep {
 public:
  // parameters: those that are trained. Collective. Error{invalid_argument} on all ranks if the mode cannot work: with
  // this number of shards or ranks, with modules that are synchronised over a part of the ranks, with ranks that differ
  // in the mode's options or arithmetic. wrapper: see GradBucket.
  ShardedStep(const torch::nn::Module& module, const NamedTensors& parameters, const NamedTensors& buffers,
              ProcessGroup group, const LockstepMode& mode, std::uint64_t wrapper);

  // Calls `body` for each of this rank's shards, in order of their indices, and returns the mean of its results over
  // all shards. Before each call torch's default generators, of the CPU and of the model's GPUs, are seeded from seed,
  // step and shard, and buffers have their values before the step. Devices use deterministic algorithms meanwhile: an
  // operator that has none throws, and is named. Each call leaves the shard's gradient in .grad, by any number of backwards
  // (microbatches: their gradients add up), or none. If one of them throws and the callback goes on, its gradients are
  // dropped; Error{invalid_argument} if they were added to others without a zero_grad(). Afterwards, on all ranks,
  // .grad is the mean over all shards (nothing is left of what was there before; a parameter that only some shards used
  // has zero from the others, one that no shard used has none), buffers that any shard changed are the mean of the
  // shards' values (integer ones must be equal), and the generator is restored. Collective; fails as collectives do,
  // and with exceptions of `body`; then there are no gradients, buffers are as before, and the step does not count.
  // With synchronised batch norms an exception of `body` aborts the group, unless this rank is alone, and shards that
  // reach different layers are an Error{desync} that names both.
  double run(const std::function<double(Shard)>& body);

  // Error{invalid_argument} if nothing would synchronise a forward now: in training, outside of run().
  void check_forward(bool is_training) const;
  // Whether a shard's callback runs.
  bool is_running() const { return is_running_; }
  // Of forwards outside of steps, through which no backward may go.
  const std::shared_ptr<ForwardGraphs>& outside() const { return outside_; }

  double communication_seconds() const { return communication_seconds_; }  // in which it reduced or waited, so far

  std::uint64_t step() const { return step_; }  // the next one
  LockstepState state() const;
  // Error{invalid_argument} for other shards or another seed. Warns if threads or arithmetic are others, or not known.
  void load_state(const LockstepState& state);

 private:
  struct ShardContext;

  void compare_with_other_ranks() const;
  void warn_of_changes(const LockstepState& state) const;
  Shard shard_at(int position) const;
  ShardResult compute(const std::function<double(Shard)>& body);
  void compute_one_by_one(const std::function<double(Shard)>& body, ShardTree& tree);
  void compute_together(const std::function<double(Shard)>& body, ShardTree& tree);
  void resume(ShardContext& context);
  void suspend(ShardContext& context);
  ShardResult collect(double loss, const Shard& shard, BackwardRecord::Left left);
  void collect_gradients(ShardResult& result) const;
  [[noreturn]] void fail_everywhere(const Error& error) const;
  bool has_gradients() const;
  void drop_gradients() const;
  at::Tensor neutral_element(std::size_t tensor) const;

  const ProcessGroup group_;
  const LockstepMode mode_;
  const std::uint64_t wrapper_;
  const std::vector<at::Device> devices_;  // of the model, besides the host
  const Arithmetic arithmetic_;
  const int own_shards_;
  const std::shared_ptr<ArenaHeap> heap_;  // null where ranks share no memory
  const bool has_sync_batch_norms_;
  NamedTensors parameters_;
  BackwardWatch watch_;
  std::shared_ptr<ForwardGraphs> outside_;
  ShardBuffers buffers_;
  std::uint64_t step_ = 0;
  bool is_running_ = false;
  double communication_seconds_ = 0;
};

}  // namespace lockstep::internal
