#include "operations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/derived.h"

namespace lockstep::python {
namespace {

Error invalid(const std::string& text) { return Error(ErrorKind::invalid_argument, text); }

void require_dense_cpu(const Tensors& tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() == at::kStrided && tensor.device().is_cpu()) continue;
    throw invalid(std::string(operation) + ": the lockstep backend takes dense CPU tensors only; this one is " +
                  (tensor.layout() == at::kStrided ? "on " + tensor.device().str() : "sparse") +
                  (tensor.device().is_cuda() ? "; use init_process_group(\"cpu:lockstep,cuda:nccl\")" : ""));
  }
}

void require_count(const Tensors& tensors, int size, const char* operation) {
  if (static_cast<int>(tensors.size()) == size) return;
  throw invalid(std::string(operation) + ": " + std::to_string(tensors.size()) + " tensors for " +
                std::to_string(size) + " ranks");
}

void require_sizes(const Tensors& tensors, const at::Tensor& like, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type()) continue;
    throw invalid(std::string(operation) + ": the tensors of all ranks must have the same size and dtype");
  }
}

// Autograd sees nothing of what collectives write.
Tensors plain(const Tensors& tensors) {
  Tensors detached;
  for (const at::Tensor& tensor : tensors) detached.push_back(tensor.detach());
  return detached;
}

void scale_in_place(const Tensors& tensors, const c10d::ReduceOp& op) {
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) throw invalid("PREMUL_SUM has no factor");
  if (factor->tensor_factor.defined()) {
    premultiply(tensors, factor->tensor_factor);
  } else {
    premultiply(tensors, factor->double_factor);
  }
}

// Lockstep's reduction; what torch's does to the operands beforehand is done here.
ReduceOp prepared(const c10d::ReduceOp& op, const Tensors& operands) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::BAND: return ReduceOp::band;
    case c10d::ReduceOp::BOR: return ReduceOp::bor;
    case c10d::ReduceOp::BXOR: return ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM: scale_in_place(operands, op); return ReduceOp::sum;
    default: throw invalid("unknown reduction " + std::to_string(static_cast<int>(op.op_)));
  }
}

}  // namespace

Started combine(std::vector<Started> parts) {
  Started all;
  if (parts.empty()) {
    WorkControl::complete(all.work, nullptr);
    return all;
  }
  all.work = parts.back().work;
  parts.pop_back();
  for (const Started& part : parts) all.before.push_back(part.work);
  return all;
}

namespace {

// Runs at once, in the caller's thread: it is several collectives, and what they do depends on what they bring.
Started all_reduce_sparse(const ProcessGroup& group, const at::Tensor& tensor, const c10d::ReduceOp& op,
                          const CallOptions& options) {
  if (op.op_ != c10d::ReduceOp::SUM) throw invalid("all_reduce: sparse tensors support SUM only");
  const at::NoGradGuard no_grad;  // not detach(): what that gives has indices of its own
  tensor.copy_(group.all_reduce_sparse(tensor, options));
  Started done;
  WorkControl::complete(done.work, nullptr);
  return done;
}

}  // namespace

Started all_reduce(const ProcessGroup& group, const Tensors& tensors, const c10d::ReduceOp& op,
                   const CallOptions& options) {
  if (tensors.size() == 1 && tensors.front().is_sparse()) return all_reduce_sparse(group, tensors.front(), op, options);
  require_dense_cpu(tensors, "all_reduce");
  const Tensors operands = plain(tensors);
  const ReduceOp reduction = prepared(op, operands);
  const auto same = [&](const at::Tensor& tensor) { return tensor.scalar_type() == operands[0].scalar_type(); };
  if (std::all_of(operands.begin(), operands.end(), same)) {
    return {.work = group.all_reduce_async(operands, reduction, options)};
  }
  std::vector<Started> parts;
  for (const at::Tensor& tensor : operands) {
    parts.push_back({.work = group.all_reduce_async(tensor, reduction, options)});
  }
  return combine(std::move(parts));
}

Started reduce(const ProcessGroup& group, const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
               const CallOptions& options) {
  require_dense_cpu({tensor}, "reduce");
  // Torch's other backends leave the tensor as it was on all ranks but the root.
  const Tensors operand{group.rank() == root ? tensor.detach() : tensor.detach().clone()};
  const ReduceOp reduction = prepared(op, operand);
  return {.work = group.reduce_async(operand, root, reduction, options)};
}

Started broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const CallOptions& options) {
  require_dense_cpu({tensor}, "broadcast");
  return {.work = group.broadcast_async(tensor.detach(), root, options)};
}

Started all_gather(const ProcessGroup& group, const Tensors& outputs, const at::Tensor& input,
                   const CallOptions& options) {
  require_dense_cpu({input}, "all_gather");
  require_dense_cpu(outputs, "all_gather");
  require_count(outputs, group.size(), "all_gather");
  require_sizes(outputs, input, "all_gather");
  return {.work = group.all_gather_into_async(plain(outputs), input.detach(), options)};
}

Started all_gather_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                        const CallOptions& options) {
  require_dense_cpu({output, input}, "all_gather_into_tensor");
  return {.work = group.all_gather_into_async(output.detach(), input.detach(), options)};
}

Started gather(const ProcessGroup& group, const Tensors& outputs_on_root, const at::Tensor& input, int root,
               const CallOptions& options) {
  require_dense_cpu({input}, "gather");
  require_dense_cpu(outputs_on_root, "gather");
  if (group.rank() == root) {
    require_count(outputs_on_root, group.size(), "gather");
    require_sizes(outputs_on_root, input, "gather");
  }
  return {.work = group.gather_into_async(plain(outputs_on_root), input.detach(), root, options)};
}

Started scatter(const ProcessGroup& group, const at::Tensor& output, const Tensors& inputs_on_root, int root,
                const CallOptions& options) {
  require_dense_cpu({output}, "scatter");
  require_dense_cpu(inputs_on_root, "scatter");
  if (group.rank() == root) {
    require_count(inputs_on_root, group.size(), "scatter");
    require_sizes(inputs_on_root, output, "scatter");
  }
  return {.work = group.scatter_async(output.detach(), plain(inputs_on_root), root, options)};
}

Started reduce_scatter(const ProcessGroup& group, const at::Tensor& output, const Tensors& inputs,
                       const c10d::ReduceOp& op, const CallOptions& options) {
  require_dense_cpu({output}, "reduce_scatter");
  require_dense_cpu(inputs, "reduce_scatter");
  Tensors operands = plain(inputs);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {  // the caller's inputs stay as they are
    for (at::Tensor& operand : operands) operand = operand.clone();
  }
  const ReduceOp reduction = prepared(op, operands);
  return {.work = group.reduce_scatter_async(output.detach(), operands, reduction, options)};
}

Started all_to_all(const ProcessGroup& group, const Tensors& outputs, const Tensors& inputs,
                   const CallOptions& options) {
  require_count(outputs, group.size(), "all_to_all");
  require_count(inputs, group.size(), "all_to_all");
  require_dense_cpu(inputs, "all_to_all");
  require_dense_cpu(outputs, "all_to_all");
  return {.work = group.all_to_all_async(plain(outputs), plain(inputs), options)};
}

Started send(const ProcessGroup& group, const at::Tensor& tensor, int peer, int tag, const CallOptions& options) {
  require_dense_cpu({tensor}, "send");
  return {.work = group.send_async(tensor.detach(), peer, tag, options)};
}

Started receive(const ProcessGroup& group, const at::Tensor& tensor, int peer, int tag, const CallOptions& options) {
  require_dense_cpu({tensor}, "recv");
  const lockstep::Work work = group.recv_async(tensor.detach(), peer, tag, options);
  return {.work = work, .source = [work] { return work.source(); }};
}

}  // namespace lockstep::python
