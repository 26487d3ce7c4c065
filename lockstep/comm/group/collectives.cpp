#include "lockstep/comm/group/collectives.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/group_state.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep {

using namespace internal;

void Collectives::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& options) const {
  // A copy-on-write twin keeps its own.
  const auto memory_of = [&] { return static_cast<std::byte*>(tensor.mutable_data_ptr()); };
  std::byte* memory = is_plain(tensor) ? as_errors("all_reduce", ErrorKind::invalid_argument, memory_of) : nullptr;
  if (memory != nullptr && is_aligned(tensor, memory)) {
    // The way of small messages: no list, no allocation.
    const Segment segment{memory, static_cast<std::size_t>(tensor.nbytes())};
    const Collective collective{.kind = OpKind::all_reduce,
                                .reduce = op,
                                .order = options.order,
                                .dtype = dtype_of(tensor, "all_reduce"),
                                .count = static_cast<std::uint64_t>(tensor.numel()),
                                .name = note_name(options.name),
                                .number = options.number,
                                .line = line_of(options),
                                .output = {&segment, 1}};
    const Deadline deadline = state_->deadline(options);
    state_->calls.run("all_reduce", deadline, [&](Engine& engine) { engine.run(collective, deadline); });
    return;
  }
  all_reduce(at::TensorList(tensor), op, options);
}

struct Collectives::Plan {
  OpKind kind;
  at::TensorList outputs = {};
  at::TensorList inputs = {};
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;

  // By the communicator of a device, if it is for one.
  std::optional<Work> start_on_device(const CallOptions& options, State& state) const {
    const auto is_on_host = [](at::TensorList list) {
      return list.empty() || (list.front().defined() && list.front().is_cpu());
    };
    if (is_on_host(outputs) && is_on_host(inputs)) return std::nullopt;
    return state.devices.start({.kind = kind,
                                .outputs = outputs,
                                .inputs = inputs,
                                .reduce = reduce,
                                .order = options.order,
                                .root = root,
                                .name = note_name(options.name),
                                .number = options.number,
                                .line = line_of(options),
                                .deadline = state.deadline(options)});
  }

  void set(Call& call, const CallOptions& options, const State& state) const {
    call.set(kind, outputs, inputs, {.rank = state.engine->rank(), .root = root});
    call.collective().reduce = reduce;
    call.collective().order = options.order;
    call.collective().name = note_name(options.name);
    call.collective().number = options.number;
    call.collective().line = line_of(options);
    call.set_deadline(state.deadline(options));
  }
};

void Collectives::run(const Plan& plan, const CallOptions& options) const {
  if (const auto work = plan.start_on_device(options, *state_)) return work->wait();
  CallQueue::Lease lease(state_->calls);
  noting_refusals(*state_->engine, [&] { plan.set(lease.call(), options, *state_); });
  state_->calls.run(lease);
}

Work Collectives::start(const Plan& plan, const CallOptions& options) const {
  if (const auto work = plan.start_on_device(options, *state_)) return *work;
  CallQueue::Lease lease(state_->calls);
  noting_refusals(*state_->engine, [&] { plan.set(lease.call(), options, *state_); });
  return options.in_caller ? state_->calls.run_to_end(lease) : state_->calls.start(lease);
}

std::vector<at::Tensor> Collectives::one_for_each_rank(const at::Tensor& like, std::string_view operation) const {
  require_dense(like, operation, "input tensor 0");
  std::vector<std::int64_t> sizes{size()};
  for (const auto length : like.sizes()) sizes.push_back(length);
  return as_errors(operation, ErrorKind::invalid_argument,
                   [&] { return at::empty(sizes, like.options().requires_grad(false)).unbind(0); });
}

void Collectives::all_reduce(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::all_reduce, .outputs = tensors, .reduce = op}, options);
}
void Collectives::scan(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::scan, .outputs = tensors, .inputs = tensors, .reduce = op}, options);
}
void Collectives::exclusive_scan(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::exclusive_scan, .outputs = tensors, .inputs = tensors, .reduce = op}, options);
}
void Collectives::reduce(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::reduce, .outputs = tensors, .reduce = op, .root = root}, options);
}
void Collectives::broadcast(at::TensorList tensors, int root, const CallOptions& options) const {
  run({.kind = OpKind::broadcast, .outputs = tensors, .root = root}, options);
}

std::vector<at::Tensor> Collectives::all_gather(const at::Tensor& input, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs = one_for_each_rank(input, "all_gather");
  all_gather_into(outputs, input, options);
  return outputs;
}
void Collectives::all_gather_into(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  run({.kind = OpKind::all_gather, .outputs = outputs, .inputs = inputs}, options);
}

std::vector<at::Tensor> Collectives::gather(const at::Tensor& input, int root, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs =
      rank() == root ? one_for_each_rank(input, "gather") : std::vector<at::Tensor>();
  gather_into(outputs, input, root, options);
  return outputs;
}
void Collectives::gather_into(at::TensorList outputs, const at::Tensor& input, int root,
                              const CallOptions& options) const {
  run({.kind = OpKind::gather, .outputs = outputs, .inputs = input, .root = root}, options);
}
void Collectives::scatter(const at::Tensor& output, at::TensorList inputs, int root, const CallOptions& options) const {
  run({.kind = OpKind::scatter, .outputs = output, .inputs = inputs, .root = root}, options);
}
void Collectives::reduce_scatter(at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                                 const CallOptions& options) const {
  run({.kind = OpKind::reduce_scatter, .outputs = outputs, .inputs = inputs, .reduce = op}, options);
}
void Collectives::all_to_all(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  run({.kind = OpKind::all_to_all, .outputs = outputs, .inputs = inputs}, options);
}

void Collectives::barrier(const CallOptions& options) const {
  const Collective collective{
      .kind = OpKind::barrier, .name = note_name(options.name), .number = options.number, .line = line_of(options)};
  const Deadline deadline = state_->deadline(options);
  state_->calls.run("barrier", deadline, [&](Engine& engine) { engine.run(collective, deadline); });
  state_->devices.wait(deadline);
}

Work Collectives::all_reduce_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::all_reduce, .outputs = tensors, .reduce = op}, options);
}
Work Collectives::scan_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::scan, .outputs = tensors, .inputs = tensors, .reduce = op}, options);
}
Work Collectives::exclusive_scan_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::exclusive_scan, .outputs = tensors, .inputs = tensors, .reduce = op}, options);
}
Work Collectives::reduce_async(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::reduce, .outputs = tensors, .reduce = op, .root = root}, options);
}
Work Collectives::broadcast_async(at::TensorList tensors, int root, const CallOptions& options) const {
  return start({.kind = OpKind::broadcast, .outputs = tensors, .root = root}, options);
}
Work Collectives::all_gather_into_async(at::TensorList outputs, at::TensorList inputs,
                                        const CallOptions& options) const {
  return start({.kind = OpKind::all_gather, .outputs = outputs, .inputs = inputs}, options);
}
Work Collectives::gather_into_async(at::TensorList outputs, const at::Tensor& input, int root,
                                    const CallOptions& options) const {
  return start({.kind = OpKind::gather, .outputs = outputs, .inputs = input, .root = root}, options);
}
Work Collectives::scatter_async(const at::Tensor& output, at::TensorList inputs, int root,
                                const CallOptions& options) const {
  return start({.kind = OpKind::scatter, .outputs = output, .inputs = inputs, .root = root}, options);
}
Work Collectives::reduce_scatter_async(at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                                       const CallOptions& options) const {
  return start({.kind = OpKind::reduce_scatter, .outputs = outputs, .inputs = inputs, .reduce = op}, options);
}
Work Collectives::all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  return start({.kind = OpKind::all_to_all, .outputs = outputs, .inputs = inputs}, options);
}

Work Collectives::barrier_async(const CallOptions& options) const { return start({.kind = OpKind::barrier}, options); }

void Collectives::all_reduce(const at::Tensor& tensor, const CallOptions& options) const {
  all_reduce(tensor, ReduceOp::sum, options);
}
void Collectives::all_reduce(at::TensorList tensors, const CallOptions& options) const {
  all_reduce(tensors, ReduceOp::sum, options);
}
void Collectives::scan(at::TensorList tensors, const CallOptions& options) const {
  scan(tensors, ReduceOp::sum, options);
}
void Collectives::exclusive_scan(at::TensorList tensors, const CallOptions& options) const {
  exclusive_scan(tensors, ReduceOp::sum, options);
}
void Collectives::reduce(at::TensorList tensors, const CallOptions& options) const {
  reduce(tensors, 0, ReduceOp::sum, options);
}
void Collectives::reduce(at::TensorList tensors, int root, const CallOptions& options) const {
  reduce(tensors, root, ReduceOp::sum, options);
}
void Collectives::broadcast(at::TensorList tensors, const CallOptions& options) const {
  broadcast(tensors, 0, options);
}
std::vector<at::Tensor> Collectives::gather(const at::Tensor& input, const CallOptions& options) const {
  return gather(input, 0, options);
}
void Collectives::gather_into(at::TensorList outputs, const at::Tensor& input, const CallOptions& options) const {
  gather_into(outputs, input, 0, options);
}
void Collectives::scatter(const at::Tensor& output, at::TensorList inputs, const CallOptions& options) const {
  scatter(output, inputs, 0, options);
}
void Collectives::reduce_scatter(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  reduce_scatter(outputs, inputs, ReduceOp::sum, options);
}
Work Collectives::all_reduce_async(at::TensorList tensors, const CallOptions& options) const {
  return all_reduce_async(tensors, ReduceOp::sum, options);
}
Work Collectives::scan_async(at::TensorList tensors, const CallOptions& options) const {
  return scan_async(tensors, ReduceOp::sum, options);
}
Work Collectives::exclusive_scan_async(at::TensorList tensors, const CallOptions& options) const {
  return exclusive_scan_async(tensors, ReduceOp::sum, options);
}
Work Collectives::reduce_async(at::TensorList tensors, const CallOptions& options) const {
  return reduce_async(tensors, 0, ReduceOp::sum, options);
}
Work Collectives::reduce_async(at::TensorList tensors, int root, const CallOptions& options) const {
  return reduce_async(tensors, root, ReduceOp::sum, options);
}
Work Collectives::broadcast_async(at::TensorList tensors, const CallOptions& options) const {
  return broadcast_async(tensors, 0, options);
}
Work Collectives::gather_into_async(at::TensorList outputs, const at::Tensor& input, const CallOptions& options) const {
  return gather_into_async(outputs, input, 0, options);
}
Work Collectives::scatter_async(const at::Tensor& output, at::TensorList inputs, const CallOptions& options) const {
  return scatter_async(output, inputs, 0, options);
}
Work Collectives::reduce_scatter_async(at::TensorList outputs, at::TensorList inputs,
                                       const CallOptions& options) const {
  return reduce_scatter_async(outputs, inputs, ReduceOp::sum, options);
}

}  // namespace lockstep
