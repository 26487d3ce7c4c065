// A Backend presents a lockstep::ProcessGroup as a torch.distributed backend. Python -> c10d -> Backend ->
// ProcessGroup. Thread-safe as ProcessGroup is. The collectives return at once unless Python waits for them anyway
// (async_op=False); monitoredBarrier blocks. Failures: see TorchWork.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "work.h"

namespace lockstep::python {

class Backend final : public c10d::Backend {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Tensors = std::vector<at::Tensor>;

  // Joins the other ranks through the store, in the part of this group and of earlier ones of the same ranks, and
  // connects to them. Blocks until all have joined.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
          const std::string& group_name, std::vector<std::uint64_t> global_ranks);
  ~Backend() override;

  const std::string getBackendName() const override { return "lockstep"; }
  // Live, as Gloo's are: a timeout written to it holds from the next call on.
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override;
  void abort() override;
  // Ends this rank's use of the group, without notifying the others, which may still run the last operation.
  void shutdown() override { is_shut_down_ = true; }
  c10d::ErrorType getError() override;
  // PyTorch's DDP asks for its buckets' memory here; in shared memory they are reduced where they lie.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  // How many collectives this rank has started: all ranks begin at 0, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  void require_open(const char* title) const;
  CallOptions within(Milliseconds timeout) const;
  // A caller that waits at once runs the collective.
  template <class Options>
  CallOptions call_options(const Options& options) const {
    CallOptions made = within(options.timeout);
    made.in_caller = !options.asyncOp;
    return made;
  }
  WorkPtr launch(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                 const std::function<Started()>& start);

  const c10::intrusive_ptr<Options> options_;
  std::unique_ptr<ProcessGroup> group_;
  std::shared_ptr<Completer> completer_ = std::make_shared<Completer>();
  std::atomic<bool> is_shut_down_ = false;
  std::atomic<std::uint64_t> sequence_ = 0;
};

}  // namespace lockstep::python
