// A ProcessGroup is a set of ranks that make the same collective calls in the same order. bucket -> process group ->
// collective. A copyable handle; the group ends when the last handle goes, without communicating (what is still in
// flight is aborted). Thread-safe; calls from several threads of one rank run one after the other, so it is for the
// caller to have all ranks agree on the order.
//
// Every call blocks until this rank's result is complete, except the *_async forms, which return at once and run in
// issue order on the group's own thread; their tensors must not be touched until the Work is done. Each fails within
// its timeout, which runs from the call on, also while it waits for its turn: Error{invalid_argument} before anything
// is sent, {desync} on every rank if ranks make different calls, {peer_lost} naming a rank that died or left, {timeout}
// naming the missing ranks, {aborted}, {corrupt_data} naming the ranks between which data was damaged. After any but
// the first two the group stays failed; after a desync, which is found before data moved, GroupOptions decide. Results
// are bitwise equal on all ranks; reductions add in rank order (see Engine), except that other backends than the native
// one add in an order of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/collective/collective.h"
#include "lockstep/group/numbers.h"
#include "lockstep/group/options.h"
#include "lockstep/group/work.h"
#include "lockstep/messages/request.h"

namespace lockstep {

class ArenaHeap;
struct GroupOrigin;

class ProcessGroup {
 public:
  // messages: what send() and recv() use; null where there are none.
  // origin: who the ranks are and how they met, which is what parts of the group are made from; null if it has none.
  explicit ProcessGroup(std::unique_ptr<Engine> engine, const GroupOptions& options = {},
                        std::unique_ptr<Mesh> messages = nullptr, std::shared_ptr<const GroupOrigin> origin = nullptr);

  int rank() const;
  int size() const;
  std::string_view transport()
      const;  // "shared memory", "tcp", "tcp and shared memory", "in-process"; else the backend
  Duration timeout() const;
  // The same options for several calls that are to end by one deadline: that of a call which begins now.
  CallOptions with_deadline(CallOptions options = {}) const {
    if (!options.deadline) options.deadline = Deadline::after(options.timeout.value_or(timeout()));
    return options;
  }

  // Dense tensors of any shape and strides. Lists work as one collective on tensors of one dtype. Every type can be
  // moved; supports() in collective.h says which can be reduced how. A tensor whose memory is not what it says (not in
  // order, lazily conjugated or negated, on another device) is copied, and the result copied back; a copy-on-write twin
  // keeps its values; autograd sees nothing. Inputs may overlap anything. Tensors that are worked on in place may
  // overlap each other: each gets its result, if all ranks list them alike. Outputs that overlap each other, and
  // written tensors whose elements share memory (expanded ones), are refused by name before anything is sent, as are
  // undefined, sparse, quantized, nested and meta tensors.

  // In place.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  void all_reduce(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  // The same for numbers and plain structs of them, each of which becomes its sum over all ranks; see numbers.h.
  template <Numbers... T>
    requires(sizeof...(T) > 0)
  void all_reduce(T&... numbers) const {
    all_reduce_numbers(number_refs(numbers...), ReduceOp::sum, {});
  }
  template <Numbers T>
  void all_reduce(T& numbers, ReduceOp op, const CallOptions& options = {}) const {
    all_reduce_numbers(number_refs(numbers), op, options);
  }
  // sum(value * weight) / sum(weight) over all ranks, the same on all of them; NaN if no rank has weight. A value of
  // weight 0 does not count, even if it is NaN.
  double weighted_mean(double value, double weight, const CallOptions& options = {}) const;
  // In place on root; elsewhere the contents are lost.
  void reduce(at::TensorList tensors, int root = 0, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  void broadcast(at::TensorList tensors, int root = 0, const CallOptions& options = {}) const;

  // The tensors of all ranks, in rank order; all have this rank's shape.
  std::vector<at::Tensor> all_gather(const at::Tensor& input, const CallOptions& options = {}) const;
  // outputs: together size() times the elements of the inputs: what each rank gave, in rank order, in as many tensors
  // as you like.
  void all_gather_into(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  // The same on root; nothing elsewhere.
  std::vector<at::Tensor> gather(const at::Tensor& input, int root = 0, const CallOptions& options = {}) const;
  void gather_into(at::TensorList outputs, const at::Tensor& input, int root = 0,
                   const CallOptions& options = {}) const;
  // inputs: on root, together size() times the elements of output; empty elsewhere.
  void scatter(const at::Tensor& output, at::TensorList inputs, int root = 0, const CallOptions& options = {}) const;
  // inputs: together size() times the elements of the outputs; this rank gets part rank() of the reduction.
  void reduce_scatter(at::TensorList outputs, at::TensorList inputs, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {}) const;
  // inputs[i] goes to rank i, outputs[i] comes from rank i; each pair may have a size of its own. If two ranks expect
  // different ones, all ranks get Error{invalid_argument} that names them, and the group goes on.
  void all_to_all(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  // Returns once all ranks have called it.
  void barrier(const CallOptions& options = {}) const;

  Work all_reduce_async(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  Work reduce_async(at::TensorList tensors, int root = 0, ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {}) const;
  Work broadcast_async(at::TensorList tensors, int root = 0, const CallOptions& options = {}) const;
  Work all_gather_into_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  Work gather_into_async(at::TensorList outputs, const at::Tensor& input, int root = 0,
                         const CallOptions& options = {}) const;
  Work scatter_async(const at::Tensor& output, at::TensorList inputs, int root = 0,
                     const CallOptions& options = {}) const;
  Work reduce_scatter_async(at::TensorList outputs, at::TensorList inputs, ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {}) const;
  Work all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  Work barrier_async(const CallOptions& options = {}) const;

  // A barrier by messages, to find out who does not come: every rank gets Error{timeout} that names a rank that has not
  // called it in time and says how it fares; all such ranks with wait_all_ranks. The group goes on, whatever happens.
  void monitored_barrier(const CallOptions& options = {}, bool wait_all_ranks = false) const;

  // Messages from one rank to another, beside all collectives and in any order with them. Those between two ranks with
  // the same tag arrive in the order sent. send() returns when the tensor may be used again, which for a large one is
  // when it has been received. recv() returns the rank that sent; kAnySource takes what comes first. The tensor has the
  // size of the message; if not, Error{desync} names both, and the group goes on. See messages/messenger.h.
  void send(const at::Tensor& tensor, int peer, int tag = 0, const CallOptions& options = {}) const;
  int recv(const at::Tensor& tensor, int peer = kAnySource, int tag = 0, const CallOptions& options = {}) const;
  Work send_async(const at::Tensor& tensor, int peer, int tag = 0, const CallOptions& options = {}) const;
  Work recv_async(const at::Tensor& tensor, int peer = kAnySource, int tag = 0, const CallOptions& options = {}) const;

  // New groups of some of these ranks, with collectives of their own; any number may be in use at once. All ranks of
  // this group call it, also those that will not be members, who get nothing. Errors as of a collective, and
  // Error{invalid_argument} if the group has no origin.
  //   split: of all ranks that give the same color, ordered by key, then by rank; a negative color joins none
  //   new_group: of the given ranks, in the given order, which all ranks must give alike
  // options: instead of this group's, such as {.backend = "gloo", .timeout = 10s}; the same on all ranks of this group.
  std::optional<ProcessGroup> split(int color, int key = 0) const;
  std::optional<ProcessGroup> split(int color, int key, const GroupOptions& options) const;
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks) const;
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks, const GroupOptions& options) const;

  // An uninitialised tensor in memory that all ranks of the node share: collectives on it move the least bytes.
  // Ordinary memory where the ranks share none. Error{invalid_argument} for sizes that no memory has.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;
  // Whether a dense tensor lies in this rank's part of that memory.
  bool is_shared(const at::Tensor& tensor) const;

  // Whether this group can do it with tensors of a type on a device; asking sends nothing. What it cannot is refused
  // with Error{invalid_argument}, before anything is sent.
  bool supports(OpKind kind, ReduceOp op, at::ScalarType dtype, at::DeviceType device = at::kCPU) const;

  // Ends every present and future call on all ranks, collectives and messages, with Error{aborted} quoting the reason.
  // Never blocks.
  void abort(std::string_view reason) const noexcept;

  // For whoever lets an exception pass that others may come to suffer from: what failed ("forward of my model"), and
  // the exception's text. Other ranks' errors quote it if this rank then makes another call than they, or leaves. The
  // next collective that works wipes it off. DistributedDataParallel does it for forwards and backwards.
  void note_failure(std::string_view what, std::string_view text) const noexcept;
  // The same for the exception that is being handled, unless it is the group's own. REQUIRES: within a catch.
  void note_exception(std::string_view what) const noexcept;
  // "forward of my model: index out of range"; empty if there is nothing.
  std::string noted_failure() const;

  // Memory that all ranks of the group share, where they do; else null.
  const std::shared_ptr<ArenaHeap>& heap() const;
  bool shares_memory() const { return heap() != nullptr; }

  // Starts a collective on plain memory, which goes on while the caller computes: in poll() and wait() where the ranks
  // share memory, else on the group's thread. `keeps` owns the memory, and is held until it is finished, whoever waits
  // for it. Ranks that differ in what they have posted end the group where they share memory.
  class Posted;
  Posted post(const Collective& collective, std::shared_ptr<const void> keeps) const;
  // Never waits for another rank or call, unless the memory is not shared (see ArenaEngine).
  void poll() const;
  void wait(const Posted& posted) const;

 private:
  struct State;

  // One collective; see Call::set().
  struct Plan;
  void run(const Plan& plan, const CallOptions& options) const;
  Work start(const Plan& plan, const CallOptions& options) const;
  std::vector<at::Tensor> one_for_each_rank(const at::Tensor& like, std::string_view operation) const;
  std::optional<ProcessGroup> part(int color, int key, const GroupOptions& options, std::string_view call) const;
  int key_in(const std::vector<int>& ranks) const;
  void all_reduce_numbers(std::span<const NumberRef> numbers, ReduceOp op, const CallOptions& options) const;

  std::shared_ptr<State> state_;
};

// What post() has started; by default nothing.
class ProcessGroup::Posted {
  friend class ProcessGroup;
  std::uint64_t number_ = 0;  // of the engine, where ranks share memory
  Work work_;                 // elsewhere
};

}  // namespace lockstep
