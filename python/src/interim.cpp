#include "interim.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

Error invalid(const std::string& text) { return Error(ErrorKind::invalid_argument, text); }

void require_dense_cpu(const at::Tensor& tensor, const char* operation) {
  if (tensor.layout() == at::kStrided && tensor.device().is_cpu()) return;
  throw invalid(std::string(operation) + ": the backend lockstep moves dense CPU tensors, and this one is " +
                (tensor.layout() == at::kStrided ? "on " + tensor.device().str() : "sparse") +
                (tensor.device().is_cuda() ? "; use init_process_group(\"cpu:lockstep,cuda:nccl\")" : ""));
}

bool is_native(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kInt:
    case at::kLong:
    case at::kByte: return true;
    default: return false;
  }
}

std::optional<ReduceOp> native(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    default: return std::nullopt;
  }
}

// A tensor's elements in order, as bytes where collectives do not know the type; a copy if they lie in another order.
at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor row = tensor.detach().contiguous().reshape({-1});
  return is_native(tensor.scalar_type()) ? row : row.view(at::kByte);
}

void copy_flat(const at::Tensor& to, const at::Tensor& row) {
  if (row.const_data_ptr() == to.const_data_ptr()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor typed = row.scalar_type() == to.scalar_type() ? row : row.view(to.scalar_type());
  to.copy_(typed.reshape(to.sizes()));
}

at::Tensor pack(const Tensors& tensors) {
  Tensors rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(flat(tensor));
  return at::cat(rows);
}

at::Tensor rows_for(const ProcessGroup& group, const at::Tensor& row) {
  return at::empty({group.size(), row.numel()}, row.options());
}

at::Tensor reduced(const at::Tensor& a, const at::Tensor& b, c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::PRODUCT: return a.mul(b);
    case c10d::ReduceOp::MIN: return at::minimum(a, b);
    case c10d::ReduceOp::MAX: return at::maximum(a, b);
    case c10d::ReduceOp::BAND: return a.bitwise_and(b);
    case c10d::ReduceOp::BOR: return a.bitwise_or(b);
    case c10d::ReduceOp::BXOR: return a.bitwise_xor(b);
    default: return a.add(b);
  }
}

void check_reduction(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
  const bool bitwise = op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  if (bitwise && !at::isIntegralType(tensor.scalar_type(), true)) {
    throw invalid("bitwise reductions need an integer or bool tensor, and this one is " +
                  std::string(c10::toString(tensor.scalar_type())));
  }
  if (op == c10d::ReduceOp::AVG && at::isIntegralType(tensor.scalar_type(), true)) {
    throw invalid("AVG needs a floating or complex tensor, and this one is " +
                  std::string(c10::toString(tensor.scalar_type())));
  }
}

// Every rank gets everything and reduces in rank order by itself.
Started gather_and_reduce(const ProcessGroup& group, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                          const CallOptions& options) {
  check_reduction(tensor, op);
  const at::Tensor row = flat(tensor);
  const at::Tensor rows = rows_for(group, row);
  return {.work = group.all_gather_into_async(rows, row, options), .finish = [tensor, rows, op] {
            const at::NoGradGuard no_grad;
            const at::Tensor typed = rows.view(tensor.scalar_type());
            at::Tensor result = typed[0];
            for (std::int64_t rank = 1; rank < typed.size(0); ++rank) result = reduced(result, typed[rank], op);
            if (op == c10d::ReduceOp::AVG) result = result.div(typed.size(0));
            copy_flat(tensor, result);
          }};
}

void scale_in_place(const Tensors& tensors, const c10d::ReduceOp& op) {
  const at::NoGradGuard no_grad;
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) throw invalid("PREMUL_SUM has no factor");
  for (const at::Tensor& tensor : tensors) {
    if (factor->tensor_factor.defined()) {
      tensor.mul_(factor->tensor_factor);
    } else {
      tensor.mul_(factor->double_factor);
    }
  }
}

void require_count(const Tensors& tensors, int size, const char* what) {
  if (static_cast<int>(tensors.size()) == size) return;
  throw invalid(std::string(what) + ": " + std::to_string(tensors.size()) + " tensors for " + std::to_string(size) +
                " ranks");
}

void require_sizes(const Tensors& tensors, const at::Tensor& like, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    require_dense_cpu(tensor, what);
    if (tensor.numel() != like.numel() || tensor.scalar_type() != like.scalar_type()) {
      throw invalid(std::string(what) + ": the tensors of all ranks must have one size and type");
    }
  }
}

}  // namespace

Started combine(std::vector<Started> parts) {
  Started all;
  if (parts.empty()) {
    all.work.complete(nullptr);
    return all;
  }
  all.work = parts.back().work;  // they run in order, and after a failure none goes well
  all.finish = [parts = std::move(parts)] {
    for (const Started& part : parts) {
      if (part.finish) part.finish();
    }
  };
  return all;
}

Started all_reduce(const ProcessGroup& group, const Tensors& tensors, const c10d::ReduceOp& op,
                   const CallOptions& options) {
  for (const at::Tensor& tensor : tensors) require_dense_cpu(tensor, "all_reduce");
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    scale_in_place(tensors, op);
    return all_reduce(group, tensors, c10d::ReduceOp::SUM, options);
  }
  const auto same = [&](const at::Tensor& tensor) { return tensor.scalar_type() == tensors[0].scalar_type(); };
  if (native(op) && is_native(tensors[0].scalar_type()) && std::all_of(tensors.begin(), tensors.end(), same)) {
    Tensors plain;
    for (const at::Tensor& tensor : tensors) plain.push_back(tensor.detach());
    return {.work = group.all_reduce_async(plain, *native(op), options)};
  }
  std::vector<Started> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(native(op) && is_native(tensor.scalar_type())
                        ? Started{.work = group.all_reduce_async(tensor.detach(), *native(op), options)}
                        : gather_and_reduce(group, tensor, op.op_, options));
  }
  return combine(std::move(parts));
}

Started reduce(const ProcessGroup& group, const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
               const CallOptions& options) {
  require_dense_cpu(tensor, "reduce");
  const at::Tensor copy = tensor.detach().clone();
  Started started = all_reduce(group, {copy}, op, options);
  if (group.rank() == root) {
    started.finish = [tensor, copy, inner = started.finish] {
      if (inner) inner();
      copy_flat(tensor, copy);
    };
  }
  return started;
}

Started broadcast(const ProcessGroup& group, const at::Tensor& tensor, int root, const CallOptions& options) {
  require_dense_cpu(tensor, "broadcast");
  if (is_native(tensor.scalar_type())) return {.work = group.broadcast_async(tensor.detach(), root, options)};
  const at::Tensor row = flat(tensor);
  return {.work = group.broadcast_async(row, root, options), .finish = [tensor, row] { copy_flat(tensor, row); }};
}

Started all_gather_into(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                        const CallOptions& options) {
  require_dense_cpu(output, "all_gather_into_tensor");
  require_dense_cpu(input, "all_gather_into_tensor");
  if (is_native(input.scalar_type()) && is_native(output.scalar_type())) {
    return {.work = group.all_gather_into_async(output.detach(), input.detach(), options)};
  }
  const at::Tensor row = flat(output);
  return {.work = group.all_gather_into_async(row, flat(input), options),
          .finish = [output, row] { copy_flat(output, row); }};
}

Started all_gather(const ProcessGroup& group, const Tensors& outputs, const at::Tensor& input,
                   const CallOptions& options) {
  require_dense_cpu(input, "all_gather");
  require_count(outputs, group.size(), "all_gather");
  require_sizes(outputs, input, "all_gather");
  const at::Tensor row = flat(input);
  const at::Tensor rows = rows_for(group, row);
  return {.work = group.all_gather_into_async(rows, row, options), .finish = [outputs, rows] {
            for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
              copy_flat(outputs[rank], rows[static_cast<std::int64_t>(rank)]);
            }
          }};
}

Started gather(const ProcessGroup& group, const Tensors& outputs_on_root, const at::Tensor& input, int root,
               const CallOptions& options) {
  require_dense_cpu(input, "gather");
  if (group.rank() == root) return all_gather(group, outputs_on_root, input, options);
  const at::Tensor row = flat(input);
  return {.work = group.all_gather_into_async(rows_for(group, row), row, options)};
}

Started scatter(const ProcessGroup& group, const at::Tensor& output, const Tensors& inputs_on_root, int root,
                const CallOptions& options) {
  require_dense_cpu(output, "scatter");
  at::Tensor rows = rows_for(group, flat(output));
  if (group.rank() == root) {
    require_count(inputs_on_root, group.size(), "scatter");
    require_sizes(inputs_on_root, output, "scatter");
    rows = pack(inputs_on_root).reshape(rows.sizes());
  }
  return {.work = group.broadcast_async(rows, root, options),
          .finish = [output, rows, rank = group.rank()] { copy_flat(output, rows[rank]); }};
}

Started reduce_scatter(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                       const c10d::ReduceOp& op, const CallOptions& options) {
  require_dense_cpu(output, "reduce_scatter");
  require_dense_cpu(input, "reduce_scatter");
  if (native(op) && is_native(input.scalar_type())) {
    return {.work = group.reduce_scatter_async(output.detach(), input.detach(), *native(op), options)};
  }
  if (input.numel() != output.numel() * group.size()) {
    throw invalid("reduce_scatter: the input must have the output's size times the number of ranks");
  }
  const at::Tensor all = input.detach().clone().reshape({group.size(), -1});
  Started started = all_reduce(group, {all}, op, options);
  started.finish = [output, all, rank = group.rank(), inner = started.finish] {
    if (inner) inner();
    copy_flat(output, all[rank]);
  };
  return started;
}

Started all_to_all(const ProcessGroup& group, const Tensors& outputs, const Tensors& inputs,
                   const CallOptions& options) {
  require_count(outputs, group.size(), "all_to_all");
  require_count(inputs, group.size(), "all_to_all");
  for (const at::Tensor& tensor : inputs) require_dense_cpu(tensor, "all_to_all");
  for (const at::Tensor& tensor : outputs) require_dense_cpu(tensor, "all_to_all");
  const at::Tensor mine = pack(inputs);
  at::Tensor lengths = at::empty({group.size()}, at::kLong);
  for (std::size_t peer = 0; peer < inputs.size(); ++peer) {
    lengths[static_cast<std::int64_t>(peer)] = flat(inputs[peer]).numel();
  }
  const at::Tensor sent = at::empty({group.size(), group.size()}, at::kLong);
  group.all_gather_into_async(sent, lengths, options).wait();
  const at::Tensor row = at::zeros({sent.sum(1).max().item<std::int64_t>()}, mine.options());
  row.narrow(0, 0, mine.numel()).copy_(mine);
  const at::Tensor rows = rows_for(group, row);
  Tensors parts;
  for (std::int64_t peer = 0; peer < group.size(); ++peer) {
    const std::int64_t begin = sent[peer].narrow(0, 0, group.rank()).sum().item<std::int64_t>();
    const std::int64_t length = sent[peer][group.rank()].item<std::int64_t>();
    const at::Tensor& output = outputs[static_cast<std::size_t>(peer)];
    if (length != flat(output).numel()) {
      throw invalid("all_to_all: rank " + std::to_string(peer) + " sends this rank a tensor of another size");
    }
    parts.push_back(rows[peer].narrow(0, begin, length));
  }
  return {.work = group.all_gather_into_async(rows, row, options), .finish = [outputs, parts] {
            for (std::size_t peer = 0; peer < outputs.size(); ++peer) copy_flat(outputs[peer], parts[peer]);
          }};
}

}  // namespace lockstep::python
