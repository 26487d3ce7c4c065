// Derived collectives, which are made of a group's own: lists in one collective, variable sizes, factors, sparse
// tensors, batches of messages. Caller -> derived -> ProcessGroup. Collective and blocking, in the caller's thread,
// except batch_isend_irecv(); errors as of ProcessGroup's calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// One tensor of every rank, in rank order. First dimensions may differ between ranks, which exchange them first; if
// dtypes or other dimensions differ, all ranks get Error{invalid_argument} that lists dtype and shape of each, and the
// group remains usable. A tensor without dimensions counts as one row.
std::vector<at::Tensor> all_gather_v(const ProcessGroup& group, const at::Tensor& input,
                                     const CallOptions& options = {});

// Groups tensors by dtype, since a collective takes tensors of one.
std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype(at::TensorList tensors);

// Several tensors of one dtype in one collective. Returns, in rank order, the tensors of each rank.
std::vector<std::vector<at::Tensor>> all_gather_coalesced(const ProcessGroup& group, at::TensorList inputs,
                                                          const CallOptions& options = {});
// inputs[i] has, along its first dimension, a part of outputs[i]'s shape for each rank, which gets its reduction.
void reduce_scatter_coalesced(const ProcessGroup& group, at::TensorList outputs, at::TensorList inputs,
                              ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

// input_splits[i] rows of the input go to rank i, output_splits[i] rows of the output come from rank i. Without splits
// all parts are equal.
void all_to_all_single(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                       std::vector<std::int64_t> output_splits = {}, std::vector<std::int64_t> input_splits = {},
                       const CallOptions& options = {});

// Multiplies by this rank's factor before the sum: a number, or a tensor of one element. `premultiply` is the first
// step, for use with any operation; Error{invalid_argument} if memory would be multiplied twice.
void all_reduce_premul_sum(const ProcessGroup& group, at::TensorList tensors, const at::Tensor& factor,
                           const CallOptions& options = {});
void all_reduce_premul_sum(const ProcessGroup& group, at::TensorList tensors, double factor,
                           const CallOptions& options = {});
void premultiply(at::TensorList tensors, const at::Tensor& factor);
void premultiply(at::TensorList tensors, double factor);

// The sum of all ranks' sparse (COO) tensors of one shape and dtype, coalesced; an element that several ranks have is
// added in rank order. If an index of a rank is out of range, all ranks get Error{invalid_argument} that names it, and
// the group remains usable.
at::Tensor all_reduce_sparse(const ProcessGroup& group, const at::Tensor& sparse, const CallOptions& options = {});

// Starts all messages, then returns their works in the same order, so ranks that send to each other need not agree on
// an order.
struct MessageCall {
  enum class Kind { send, receive };
  Kind kind = Kind::send;
  at::Tensor tensor;
  int peer = 0;
  int tag = 0;
};
std::vector<Work> batch_isend_irecv(const ProcessGroup& group, const std::vector<MessageCall>& calls,
                                    const CallOptions& options = {});

}  // namespace lockstep
