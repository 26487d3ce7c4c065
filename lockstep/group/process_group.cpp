#include "lockstep/group/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/tensor_bytes.h"

namespace lockstep {
namespace {

// A collective with the tensors that it works on.
struct Call {
  Collective collective;
  std::optional<TensorBytes> input;
  std::optional<TensorBytes> output;
  Deadline deadline = Deadline::never();

  void run(Engine& engine) {
    if (input) collective.input = input->segments();
    if (output) collective.output = output->segments();
    engine.run(collective, deadline);
    if (output) output->copy_back();
  }
};

}  // namespace

struct ProcessGroup::State {
  State(std::unique_ptr<Engine> made, const GroupOptions& options)
      : engine(std::move(made)), arena(dynamic_cast<ArenaEngine*>(engine.get())), timeout(options.timeout) {}

  ~State() {
    {
      const std::lock_guard lock(mutex);
      if (running || !queue.empty()) engine->abort("the group was destroyed with collectives in flight");
    }
    thread.request_stop();
  }

  Deadline deadline(const CallOptions& options) const { return Deadline::after(options.timeout.value_or(timeout)); }

  // In the caller, behind everything that was issued before.
  template <class Run>
  void run(Run&& run_collective) {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return queue.empty() && !running; });
    run_collective(*engine);
  }

  // On the group's thread.
  Work start(std::shared_ptr<Call> call) {
    Work work;
    {
      const std::lock_guard lock(mutex);
      if (!thread.joinable()) thread = std::jthread([this](const std::stop_token& stop) { serve(stop); });
      queue.emplace_back(std::move(call), work);
    }
    queued.notify_one();
    return work;
  }

  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (queued.wait(lock, stop, [this] { return !queue.empty(); })) {
      auto [call, work] = std::move(queue.front());
      queue.pop_front();
      running = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        call->run(*engine);
      } catch (...) {
        error = std::current_exception();
      }
      call.reset();  // tensors go before the waiter is told
      lock.lock();
      running = false;  // before as well: the waiter may end the group at once
      idle.notify_all();
      work.complete(error);
    }
  }

  const std::unique_ptr<Engine> engine;
  ArenaEngine* const arena;
  const Duration timeout;

  std::mutex mutex;  // held while a collective runs in a caller
  std::condition_variable idle;
  std::condition_variable_any queued;
  // State below is protected by mutex.
  std::deque<std::pair<std::shared_ptr<Call>, Work>> queue;
  bool running = false;  // the thread is in a collective
  std::jthread thread;   // made with the first asynchronous call; last member: it must end first
};

namespace {

Call reduction(OpKind kind, at::TensorList output, ReduceOp op, const CallOptions& options, Deadline deadline) {
  Call call;
  call.output.emplace(output, to_string(kind));
  call.collective = {.kind = kind,
                     .reduce = op,
                     .dtype = call.output->dtype(),
                     .count = call.output->count(),
                     .name = hash_of(options.name)};
  call.deadline = deadline;
  return call;
}

Call broadcasting(at::TensorList tensors, int root, const CallOptions& options, Deadline deadline) {
  Call call = reduction(OpKind::broadcast, tensors, ReduceOp::sum, options, deadline);
  call.collective.root = root;
  return call;
}

void require_same_dtype(const Call& call) {
  if (call.input->dtype() == call.output->dtype()) return;
  throw Error(ErrorKind::invalid_argument, std::string(to_string(call.collective.kind)) + ": input is " +
                                               std::string(to_string(call.input->dtype())) + " where output is " +
                                               std::string(to_string(call.output->dtype())));
}

Call gathering(const at::Tensor& output, const at::Tensor& input, const CallOptions& options, Deadline deadline) {
  Call call = reduction(OpKind::all_gather, output, ReduceOp::sum, options, deadline);
  call.input.emplace(input, "all_gather");
  require_same_dtype(call);
  call.collective.count = call.input->count();
  return call;
}

Call scattering(const at::Tensor& output, const at::Tensor& input, ReduceOp op, const CallOptions& options,
                Deadline deadline) {
  Call call = reduction(OpKind::reduce_scatter, output, op, options, deadline);
  call.input.emplace(input, "reduce_scatter");
  require_same_dtype(call);
  return call;
}

}  // namespace

ProcessGroup::ProcessGroup(std::unique_ptr<Engine> engine, const GroupOptions& options)
    : state_(std::make_shared<State>(std::move(engine), options)) {}

int ProcessGroup::rank() const { return state_->engine->rank(); }
int ProcessGroup::size() const { return state_->engine->size(); }
std::string_view ProcessGroup::transport() const { return state_->engine->name(); }
Duration ProcessGroup::timeout() const { return state_->timeout; }

void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& options) const {
  if (tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu()) {
    // The way of small messages: no list, no allocation.
    const Segment segment{static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
    const Collective collective{.kind = OpKind::all_reduce,
                                .reduce = op,
                                .dtype = dtype_of(tensor, "all_reduce"),
                                .count = static_cast<std::uint64_t>(tensor.numel()),
                                .name = hash_of(options.name),
                                .output = {&segment, 1}};
    state_->run([&](Engine& engine) { engine.run(collective, state_->deadline(options)); });
    return;
  }
  all_reduce(at::TensorList(tensor), op, options);
}

void ProcessGroup::all_reduce(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  Call call = reduction(OpKind::all_reduce, tensors, op, options, state_->deadline(options));
  state_->run([&](Engine& engine) { call.run(engine); });
}

void ProcessGroup::broadcast(const at::Tensor& tensor, int root, const CallOptions& options) const {
  broadcast(at::TensorList(tensor), root, options);
}

void ProcessGroup::broadcast(at::TensorList tensors, int root, const CallOptions& options) const {
  Call call = broadcasting(tensors, root, options, state_->deadline(options));
  state_->run([&](Engine& engine) { call.run(engine); });
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& input, const CallOptions& options) const {
  std::vector<std::int64_t> sizes{size()};
  for (const auto length : input.sizes()) sizes.push_back(length);
  const at::Tensor output = at::empty(sizes, input.options().requires_grad(false));
  all_gather_into(output, input, options);
  return output.unbind(0);
}

void ProcessGroup::all_gather_into(const at::Tensor& output, const at::Tensor& input,
                                   const CallOptions& options) const {
  Call call = gathering(output, input, options, state_->deadline(options));
  state_->run([&](Engine& engine) { call.run(engine); });
}

void ProcessGroup::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                  const CallOptions& options) const {
  Call call = scattering(output, input, op, options, state_->deadline(options));
  state_->run([&](Engine& engine) { call.run(engine); });
}

void ProcessGroup::barrier(const CallOptions& options) const {
  const Collective collective{.kind = OpKind::barrier, .name = hash_of(options.name)};
  state_->run([&](Engine& engine) { engine.run(collective, state_->deadline(options)); });
}

Work ProcessGroup::all_reduce_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return state_->start(
      std::make_shared<Call>(reduction(OpKind::all_reduce, tensors, op, options, state_->deadline(options))));
}

Work ProcessGroup::broadcast_async(at::TensorList tensors, int root, const CallOptions& options) const {
  return state_->start(std::make_shared<Call>(broadcasting(tensors, root, options, state_->deadline(options))));
}

Work ProcessGroup::all_gather_into_async(const at::Tensor& output, const at::Tensor& input,
                                         const CallOptions& options) const {
  return state_->start(std::make_shared<Call>(gathering(output, input, options, state_->deadline(options))));
}

Work ProcessGroup::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                        const CallOptions& options) const {
  return state_->start(std::make_shared<Call>(scattering(output, input, op, options, state_->deadline(options))));
}

Work ProcessGroup::barrier_async(const CallOptions& options) const {
  auto call = std::make_shared<Call>();
  call->collective.name = hash_of(options.name);
  call->deadline = state_->deadline(options);
  return state_->start(std::move(call));
}

at::Tensor ProcessGroup::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  if (state_->arena == nullptr) return at::empty(sizes, at::TensorOptions().dtype(dtype));
  return empty_in_arena(state_->arena->arena().heap(), sizes, dtype);
}

bool ProcessGroup::is_shared(const at::Tensor& tensor) const {
  return state_->arena != nullptr &&
         state_->arena->arena()
             .offset_of(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes())
             .has_value();
}

void ProcessGroup::abort(std::string_view reason) const noexcept { state_->engine->abort(reason); }

bool ProcessGroup::shares_memory() const { return state_->arena != nullptr; }

void ProcessGroup::drive(const std::function<void(ArenaEngine&)>& use) const {
  state_->run([&](Engine&) { use(*state_->arena); });
}

}  // namespace lockstep
