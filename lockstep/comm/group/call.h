// A Call is one collective together with the tensors that it works on: what a ProcessGroup runs or queues.
// tensors -> Call -> engine. Used again and again, since it keeps its memory. Belongs to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/adapters/carrier.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/group/tensor_segments.h"

namespace lockstep::internal {

class Call {
 public:
  // Who calls.
  struct Caller {
    int rank = 0;
    int root = 0;
    Memory memory = Memory::host;
  };
  // all_reduce, reduce and broadcast have outputs only, and a barrier no tensors. Lists are joined; with a root, the
  // list that only the root needs is empty elsewhere. Error{invalid_argument} before anything is sent: see
  // TensorSegments. Inputs that lie over outputs are copied, but for those that Collective allows.
  void set(OpKind kind, at::TensorList outputs, at::TensorList inputs, const Caller& caller);
  // On plain memory that `keeps` owns.
  void set(const Collective& collective, std::shared_ptr<const void> keeps);
  // What set() cannot know: reduction, order, name, flight record.
  Collective& collective() { return collective_; }
  const Collective& collective() const { return collective_; }
  void set_deadline(Deadline deadline) { deadline_ = deadline; }
  Deadline deadline() const { return deadline_; }

  // For what a device's communicator does: a call that is only compared with those of the others.
  class Comparison {
   public:
    virtual ~Comparison() = default;
    virtual void agreed() = 0;  // all ranks have made this call
    virtual void failed(const std::exception_ptr& error) noexcept = 0;
  };
  // Of a call that somebody else runs: this one has none of its tensors.
  void compare_for(std::shared_ptr<Comparison> comparison, const Call& of);
  const std::shared_ptr<Comparison>& comparison() const { return comparison_; }
  // Error{invalid_argument} before anything is sent, of what else an engine finds.
  void check(int rank, int size);
  const TensorSegments& input() const { return input_; }
  const TensorSegments& output() const { return output_; }
  // Borrows from this call.
  CarrierCall for_communicator(std::byte* input, std::byte* output) const;
  // The device's memory has what it should, once the current streams have come this far: what remains to be queued.
  void finish_on_streams();

  // REQUIRES: set(). Results are there for the calling thread's streams.
  void run(Engine& engine);
  // The same on streams of the calling thread's own; for a caller's streams they are there once those have waited for
  // done().
  void run_aside(Engine& engine);
  const StreamMarks& done() const { return done_; }
  // Lets go of the tensors.
  void clear();

 private:
  void keep_apart(int rank);
  void check_lists(int size) const;
  void compare(Engine& engine);
  void agree_on_counts(Engine& engine);

  Collective collective_;
  TensorSegments input_;
  TensorSegments output_;
  std::shared_ptr<const void> keeps_;
  std::shared_ptr<Comparison> comparison_;
  StreamMarks done_;
  Deadline deadline_ = Deadline::never();
  // Of all_to_all. What this rank sends to every rank, then what it expects from each; the same of all ranks; what each
  // sends to each.
  std::vector<std::uint64_t> mine_;
  std::vector<std::uint64_t> told_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace lockstep::internal
