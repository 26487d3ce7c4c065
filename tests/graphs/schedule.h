// A random schedule of training steps, and how one rank of either side plays it: DistributedDataParallel, or the same
// module averaged by hand. Both sides play the same code; what differs is in Side. A Side belongs to one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/graphs/graph.h"

namespace lockstep::testing {

enum class StepKind {
  plain,
  accumulate,  // `times` backwards without synchronisation, then one with
  skip,        // backward throws on all ranks
  evaluate,
  dropped_forward,  // in grad mode, without a backward
  two_forwards,     // one backward of both
  two_backwards,    // of two forwards; odd choice: in the other order
  crossed,          // of one forward without synchronisation and one with; odd choice: one backward of both
  retained,         // two backwards of one forward
  attack,           // the gradient of the loss to the input, then a plain step
  penalty,          // the gradient's norm is a part of the loss
  bare,             // the module itself beside the wrapper; choice: on which ranks, and whether its gradients stay
  threaded,         // backward in another thread
  reload,           // state_dict() saved and loaded, then a plain step
  poisoned,         // one rank's input has a NaN
  uneven,           // join() with another number of batches on every rank
  sharded,          // lockstep mode: for_each_shard()
};

enum class Zero { to_none, to_zeros, not_at_all };

struct TrainingStep {
  StepKind kind = StepKind::plain;
  Zero zero = Zero::to_none;
  int times = 1;
  int choice = 0;
  bool optimizes = true;
  bool changes_output = false;  // the caller changes an output in place
};

using Schedule = std::vector<TrainingStep>;
std::string to_text(const TrainingStep& step);

// Leaves of a forward that are not the module's parameters: what the reference computes with in lower precision.
using Leaves = std::shared_ptr<std::vector<at::Tensor>>;

struct Forwarded {
  Result result;
  at::Tensor auxiliary;
  std::vector<at::Tensor> parameters;  // that it computed with
  double weight = 0;                   // samples
  bool synchronised = false;           // went through the wrapper, outside of no_sync
  bool bare = false;
  Leaves leaves = nullptr;
};

// One batch of a rank that joins, or one shard.
struct Batch {
  int part = 0;
  int rank = 0;
};

class Side {
 public:
  virtual ~Side() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual Forwarded forward(const at::Tensor& x, const Call& call) = 0;
  virtual Forwarded bare_forward(const at::Tensor& x, const Call& call) = 0;
  virtual void without_sync(const std::function<void()>& body) = 0;
  virtual void backward(const at::Tensor& loss, const std::vector<const Forwarded*>& through, bool retain) = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;
  virtual std::vector<at::Tensor> statistics() const = 0;
  virtual void train(bool on) = 0;
  virtual void reload() = 0;
  // Calls step(batch) for `mine` batches, as join() does on ranks of which some have more.
  virtual void join(int mine, const std::function<void(const Batch&)>& step) = 0;
  virtual double for_each_shard(const std::function<double(const Batch&)>& body) = 0;
  // What has gone wrong that no tensor shows; empty if nothing has.
  virtual std::string complaint() const { return {}; }
};

// What a run has left after every step.
struct Record {
  std::string name;
  at::Tensor value;  // may be undefined
};
using Trace = std::vector<Record>;

struct Play {
  const Graph& graph;
  const Schedule& schedule;
  std::uint64_t seed = 0;
  bool unequal_rows = false;
  int shards = 0;
};

Trace play(const Play& play, Side& side);

}  // namespace lockstep::testing
