// Torch's collectives as calls of a ProcessGroup: torch's reductions, checks and messages. Backend -> here ->
// ProcessGroup. Each starts an operation and returns at once; failures as ProcessGroup's.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "work.h"

namespace lockstep::python {

using Tensors = std::vector<at::Tensor>;

// Operations that run one after the other, as one.
Started combine(std::vector<Started> parts);

Started all_reduce(const ProcessGroup& group, const Tensors& tensors, const c10d::ReduceOp& op,
                   const CallOptions& options);
Started reduce(const ProcessGroup& group, const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
               const CallOptions& options);
Started broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const CallOptions& options);
Started all_gather(const ProcessGroup& group, const Tensors& outputs, const at::Tensor& input,
                   const CallOptions& options);
Started all_gather_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                        const CallOptions& options);
Started gather(const ProcessGroup& group, const Tensors& outputs_on_root, const at::Tensor& input, int root,
               const CallOptions& options);
Started scatter(const ProcessGroup& group, const at::Tensor& output, const Tensors& inputs_on_root, int root,
                const CallOptions& options);
Started reduce_scatter(const ProcessGroup& group, const at::Tensor& output, const Tensors& inputs,
                       const c10d::ReduceOp& op, const CallOptions& options);
Started all_to_all(const ProcessGroup& group, const Tensors& outputs, const Tensors& inputs,
                   const CallOptions& options);
Started send(const ProcessGroup& group, const at::Tensor& tensor, int peer, int tag, const CallOptions& options);
Started receive(const ProcessGroup& group, const at::Tensor& tensor, int peer, int tag, const CallOptions& options);

}  // namespace lockstep::python
