#include "lockstep/group/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/group_state.h"
#include "lockstep/group/parts.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/group/torch_errors.h"
#include "lockstep/observe/process_recorder.h"
#include "lockstep/transport/arena_heap.h"

namespace lockstep {
ProcessGroup::ProcessGroup(std::unique_ptr<Engine> engine, const GroupOptions& options, std::unique_ptr<Mesh> messages,
                           std::shared_ptr<const GroupOrigin> origin)
    : state_(new State(std::move(engine), options, std::move(messages), std::move(origin)), &State::destroy) {}

int ProcessGroup::rank() const { return state_->engine->rank(); }
int ProcessGroup::size() const { return state_->engine->size(); }
std::string_view ProcessGroup::transport() const { return state_->engine->name(); }
Duration ProcessGroup::timeout() const { return state_->options.timeout; }

void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& options) const {
  std::byte* memory = is_plain(tensor)
                          ? as_errors("all_reduce", ErrorKind::invalid_argument,
                                      [&] {
                                        return static_cast<std::byte*>(
                                            tensor.mutable_data_ptr());  // a copy-on-write twin keeps its own
                                      })
                          : nullptr;
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

struct ProcessGroup::Plan {
  OpKind kind;
  at::TensorList outputs = {};
  at::TensorList inputs = {};
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;

  void set(Call& call, const CallOptions& options, const State& state) const {
    const Memory memory = state.engine->reads_device_memory() ? Memory::device : Memory::host;
    call.set(kind, outputs, inputs, {.rank = state.engine->rank(), .root = root, .memory = memory});
    call.collective().reduce = reduce;
    call.collective().order = options.order;
    call.collective().name = note_name(options.name);
    call.collective().number = options.number;
    call.collective().line = line_of(options);
    call.set_deadline(state.deadline(options));
  }
};

void ProcessGroup::run(const Plan& plan, const CallOptions& options) const {
  CallQueue::Lease lease(state_->calls);
  noting_refusals(*state_->engine, [&] { plan.set(lease.call(), options, *state_); });
  state_->calls.run(lease);
}

Work ProcessGroup::start(const Plan& plan, const CallOptions& options) const {
  CallQueue::Lease lease(state_->calls);
  noting_refusals(*state_->engine, [&] { plan.set(lease.call(), options, *state_); });
  return options.in_caller ? state_->calls.run_to_end(lease) : state_->calls.start(lease);
}

std::vector<at::Tensor> ProcessGroup::one_for_each_rank(const at::Tensor& like, std::string_view operation) const {
  require_dense(like, operation, "input tensor 0");
  std::vector<std::int64_t> sizes{size()};
  for (const auto length : like.sizes()) sizes.push_back(length);
  return as_errors(operation, ErrorKind::invalid_argument,
                   [&] { return at::empty(sizes, like.options().requires_grad(false)).unbind(0); });
}

void ProcessGroup::all_reduce(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::all_reduce, .outputs = tensors, .reduce = op}, options);
}
void ProcessGroup::reduce(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  run({.kind = OpKind::reduce, .outputs = tensors, .reduce = op, .root = root}, options);
}
void ProcessGroup::broadcast(at::TensorList tensors, int root, const CallOptions& options) const {
  run({.kind = OpKind::broadcast, .outputs = tensors, .root = root}, options);
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& input, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs = one_for_each_rank(input, "all_gather");
  all_gather_into(outputs, input, options);
  return outputs;
}
void ProcessGroup::all_gather_into(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  run({.kind = OpKind::all_gather, .outputs = outputs, .inputs = inputs}, options);
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& input, int root, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs =
      rank() == root ? one_for_each_rank(input, "gather") : std::vector<at::Tensor>();
  gather_into(outputs, input, root, options);
  return outputs;
}
void ProcessGroup::gather_into(at::TensorList outputs, const at::Tensor& input, int root,
                               const CallOptions& options) const {
  run({.kind = OpKind::gather, .outputs = outputs, .inputs = input, .root = root}, options);
}
void ProcessGroup::scatter(const at::Tensor& output, at::TensorList inputs, int root,
                           const CallOptions& options) const {
  run({.kind = OpKind::scatter, .outputs = output, .inputs = inputs, .root = root}, options);
}
void ProcessGroup::reduce_scatter(at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                                  const CallOptions& options) const {
  run({.kind = OpKind::reduce_scatter, .outputs = outputs, .inputs = inputs, .reduce = op}, options);
}
void ProcessGroup::all_to_all(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  run({.kind = OpKind::all_to_all, .outputs = outputs, .inputs = inputs}, options);
}

void ProcessGroup::barrier(const CallOptions& options) const {
  const Collective collective{
      .kind = OpKind::barrier, .name = note_name(options.name), .number = options.number, .line = line_of(options)};
  const Deadline deadline = state_->deadline(options);
  state_->calls.run("barrier", deadline, [&](Engine& engine) { engine.run(collective, deadline); });
}

Work ProcessGroup::all_reduce_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::all_reduce, .outputs = tensors, .reduce = op}, options);
}
Work ProcessGroup::reduce_async(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  return start({.kind = OpKind::reduce, .outputs = tensors, .reduce = op, .root = root}, options);
}
Work ProcessGroup::broadcast_async(at::TensorList tensors, int root, const CallOptions& options) const {
  return start({.kind = OpKind::broadcast, .outputs = tensors, .root = root}, options);
}
Work ProcessGroup::all_gather_into_async(at::TensorList outputs, at::TensorList inputs,
                                         const CallOptions& options) const {
  return start({.kind = OpKind::all_gather, .outputs = outputs, .inputs = inputs}, options);
}
Work ProcessGroup::gather_into_async(at::TensorList outputs, const at::Tensor& input, int root,
                                     const CallOptions& options) const {
  return start({.kind = OpKind::gather, .outputs = outputs, .inputs = input, .root = root}, options);
}
Work ProcessGroup::scatter_async(const at::Tensor& output, at::TensorList inputs, int root,
                                 const CallOptions& options) const {
  return start({.kind = OpKind::scatter, .outputs = output, .inputs = inputs, .root = root}, options);
}
Work ProcessGroup::reduce_scatter_async(at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                                        const CallOptions& options) const {
  return start({.kind = OpKind::reduce_scatter, .outputs = outputs, .inputs = inputs, .reduce = op}, options);
}
Work ProcessGroup::all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  return start({.kind = OpKind::all_to_all, .outputs = outputs, .inputs = inputs}, options);
}

Work ProcessGroup::barrier_async(const CallOptions& options) const { return start({.kind = OpKind::barrier}, options); }

std::optional<ProcessGroup> ProcessGroup::part(int color, int key, const GroupOptions& options,
                                               std::string_view call) const {
  if (state_->origin == nullptr) {
    throw Error(ErrorKind::invalid_argument, "split: this group was made without a store, so no part of it can meet");
  }
  const Deadline deadline = Deadline::after(timeout());
  std::vector<std::int64_t> mine{color, key}, all(2 * static_cast<std::size_t>(size()));
  const auto tensor_of = [](auto& values) { return at::from_blob(values.data(), std::ssize(values), at::kLong); };
  const int number = state_->splits;
  const auto watch = watch_parts(*state_->origin, *this, options, number, deadline);
  try {
    all_gather_into(tensor_of(all), tensor_of(mine), {.deadline = deadline, .name = call});
  } catch (const Error& error) {
    throw abandon_parts(*state_->origin, watch.get(), error);
  }
  ++state_->splits;
  if (color < 0 && watch != nullptr) watch->end(deadline);
  if (color < 0) return std::nullopt;
  const std::vector<int> ranks = ranks_of_part(all, color);
  const std::string name = std::to_string(number) + "." + std::to_string(color);
  return connect_part(*state_->origin, rank(), ranks, name, options, watch, deadline);
}

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) const {
  return part(color, key, state_->options, "split");
}

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  state_->fork_guard.check("a group");  // a child has none of the memory
  if (state_->heap == nullptr) return checked_empty(sizes, dtype);
  return empty_in_arena(state_->heap, sizes, dtype);
}

bool ProcessGroup::is_shared(const at::Tensor& tensor) const {
  return state_->heap != nullptr && tensor.defined() && tensor.is_cpu() && tensor.has_storage() &&
         state_->heap->owns(tensor.const_data_ptr());
}

bool ProcessGroup::supports(OpKind kind, ReduceOp op, at::ScalarType dtype, at::DeviceType device) const {
  if (device == at::kMeta) return kind == OpKind::barrier;
  return state_->engine->supports(kind, op, known_dtype(dtype).value_or(DType::opaque));
}

void ProcessGroup::abort(std::string_view reason) const noexcept {
  state_->engine->abort(reason);
  state_->abort_messages(reason);
}

void ProcessGroup::note_failure(std::string_view what, std::string_view text) const noexcept {
  state_->engine->failure_note().note(what, text);
}

std::string ProcessGroup::noted_failure() const { return state_->engine->failure_note().text(); }

const std::shared_ptr<ArenaHeap>& ProcessGroup::heap() const { return state_->heap; }

ProcessGroup::Posted ProcessGroup::post(const Collective& collective, std::shared_ptr<const void> keeps) const {
  const Deadline deadline = state_->deadline({});
  Posted posted;
  if (state_->heap != nullptr) {
    state_->calls.run(to_string(collective.kind), deadline,
                      [&](Engine& engine) { posted.number_ = engine.post(collective, deadline, std::move(keeps)); });
    return posted;
  }
  CallQueue::Lease lease(state_->calls);
  lease.call().set(collective, std::move(keeps));
  lease.call().set_deadline(deadline);
  posted.work_ = state_->calls.start(lease);
  return posted;
}

void ProcessGroup::poll() const {
  if (state_->heap != nullptr) state_->calls.run_if_free([](Engine& engine) { engine.poll(); });
}

void ProcessGroup::wait(const Posted& posted) const {
  if (state_->heap == nullptr) return posted.work_.wait();
  const Deadline deadline = state_->deadline({});
  state_->calls.run("a posted collective", deadline, [&](Engine& engine) { engine.wait(posted.number_, deadline); });
}

void ProcessGroup::note_exception(std::string_view what) const noexcept {
  try {
    throw;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::invalid_argument) note_failure(what, error.what());
  } catch (const std::exception& error) {
    note_failure(what, error.what());
  } catch (...) {
    note_failure(what, "what was thrown is no std::exception");
  }
}

}  // namespace lockstep
