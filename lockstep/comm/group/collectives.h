// The collectives of a ProcessGroup on tensors and numbers, whose rules (errors, order, threads) process_group.h
// states.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/group_handle.h"
#include "lockstep/comm/group/numbers.h"

namespace lockstep {

class Collectives : public GroupHandle {
 public:
  using GroupHandle::GroupHandle;

  // Dense tensors of any shape and strides. Lists work as one collective on tensors of one dtype. Every dtype can be
  // moved; supports() in collective.h says which can be reduced how. A tensor that is not plain memory (not contiguous,
  // lazily conjugated or negated, on another device) is copied, and the result copied back; a copy-on-write twin keeps
  // its values; autograd sees nothing. Inputs may overlap anything. Tensors that are worked on in place may overlap
  // each other: each gets its result, if all ranks list them in the same way. Outputs that overlap each other, and
  // written tensors whose elements share memory (expanded ones), are refused by name before anything is sent, as are
  // undefined, sparse, quantized, nested and meta tensors.

  // In place.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  void all_reduce(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  // The same for numbers and plain structs of them, each of which becomes its sum over all ranks; see numbers.h.
  template <internal::NumberArgument... T>
    requires(sizeof...(T) > 0)
  void all_reduce(T&... numbers) const {
    all_reduce_numbers(internal::number_refs(numbers...), ReduceOp::sum, {});
  }
  template <internal::NumberArgument T>
  void all_reduce(T& numbers, ReduceOp op, const CallOptions& options = {}) const {
    all_reduce_numbers(internal::number_refs(numbers), op, options);
  }
  template <internal::NumberArgument T>
  void all_reduce(T& numbers, const CallOptions& options) const {
    all_reduce_numbers(internal::number_refs(numbers), ReduceOp::sum, options);
  }
  // In place. Rank r gets ((x0 op x1) op x2) ... op xr, and from exclusive_scan the same without xr: on rank 0 that is
  // the operation's identity, which is 0 for sum, avg, bor and bxor, 1 for product, all bits for band, the largest
  // value of the type for min and the least one for max. avg divides by the number of ranks that it adds up. The bits
  // are the same over all backends. Tensors of a list may not overlap. Moves as many bytes as an all-gather.
  void scan(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  void exclusive_scan(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  // In place on root; elsewhere the contents are lost.
  void reduce(at::TensorList tensors, int root = 0, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  void broadcast(at::TensorList tensors, int root = 0, const CallOptions& options = {}) const;

  // The tensors of all ranks, in rank order; all have this rank's shape.
  std::vector<at::Tensor> all_gather(const at::Tensor& input, const CallOptions& options = {}) const;
  // outputs: together size() times the elements of the inputs: the data of all ranks, in rank order, in any number of
  // tensors.
  void all_gather_into(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  // The same on root; empty elsewhere.
  std::vector<at::Tensor> gather(const at::Tensor& input, int root = 0, const CallOptions& options = {}) const;
  void gather_into(at::TensorList outputs, const at::Tensor& input, int root = 0,
                   const CallOptions& options = {}) const;
  // inputs: on root, together size() times the elements of output; empty elsewhere.
  void scatter(const at::Tensor& output, at::TensorList inputs, int root = 0, const CallOptions& options = {}) const;
  // inputs: together size() times the elements of the outputs; this rank gets part rank() of the reduction.
  void reduce_scatter(at::TensorList outputs, at::TensorList inputs, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {}) const;
  // inputs[i] goes to rank i, outputs[i] comes from rank i; sizes may differ between pairs. If two ranks expect
  // different sizes, all ranks get Error{invalid_argument} that names them, and the group remains usable.
  void all_to_all(at::TensorList outputs, at::TensorList inputs, const CallOptions& options = {}) const;
  // Returns once all ranks have called it.
  void barrier(const CallOptions& options = {}) const;

  Work all_reduce_async(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  Work scan_async(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
  Work exclusive_scan_async(at::TensorList tensors, ReduceOp op = ReduceOp::sum, const CallOptions& options = {}) const;
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

  // The same with the default root and operation: all_reduce(tensor, {.timeout = 10s}).
  void all_reduce(const at::Tensor& tensor, const CallOptions& options) const;
  void all_reduce(at::TensorList tensors, const CallOptions& options) const;
  void scan(at::TensorList tensors, const CallOptions& options) const;
  void exclusive_scan(at::TensorList tensors, const CallOptions& options) const;
  void reduce(at::TensorList tensors, const CallOptions& options) const;
  void reduce(at::TensorList tensors, int root, const CallOptions& options) const;
  void broadcast(at::TensorList tensors, const CallOptions& options) const;
  std::vector<at::Tensor> gather(const at::Tensor& input, const CallOptions& options) const;
  void gather_into(at::TensorList outputs, const at::Tensor& input, const CallOptions& options) const;
  void scatter(const at::Tensor& output, at::TensorList inputs, const CallOptions& options) const;
  void reduce_scatter(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const;
  Work all_reduce_async(at::TensorList tensors, const CallOptions& options) const;
  Work scan_async(at::TensorList tensors, const CallOptions& options) const;
  Work exclusive_scan_async(at::TensorList tensors, const CallOptions& options) const;
  Work reduce_async(at::TensorList tensors, const CallOptions& options) const;
  Work reduce_async(at::TensorList tensors, int root, const CallOptions& options) const;
  Work broadcast_async(at::TensorList tensors, const CallOptions& options) const;
  Work gather_into_async(at::TensorList outputs, const at::Tensor& input, const CallOptions& options) const;
  Work scatter_async(const at::Tensor& output, at::TensorList inputs, const CallOptions& options) const;
  Work reduce_scatter_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const;

 private:
  // One collective; see Call::set().
  struct Plan;
  void run(const Plan& plan, const CallOptions& options) const;
  Work start(const Plan& plan, const CallOptions& options) const;
  std::vector<at::Tensor> one_for_each_rank(const at::Tensor& like, std::string_view operation) const;
  void all_reduce_numbers(std::span<const internal::NumberRef> numbers, ReduceOp op, const CallOptions& options) const;
};

}  // namespace lockstep
