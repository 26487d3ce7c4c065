#include "lockstep/group/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "lockstep/base/birthplace.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/call.h"
#include "lockstep/group/connect.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/messages/messenger.h"

namespace lockstep {

struct ProcessGroup::State {
  State(std::unique_ptr<Engine> made, const GroupOptions& chosen, std::unique_ptr<Mesh> for_messages,
        std::shared_ptr<const GroupOrigin> known)
      : engine(std::move(made)),
        arena(dynamic_cast<ArenaEngine*>(engine.get())),
        options(chosen),
        timeout(chosen.timeout),
        origin(std::move(known)),
        messages(std::move(for_messages)) {}

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
    birthplace.check("a group");
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return queue.empty() && !running; });
    run_collective(*engine);
  }

  // On the group's thread.
  Work start(std::shared_ptr<Call> call) {
    birthplace.check("a group");
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

  // In a forked child the state is never destroyed: it would wait for threads that are not there.
  static void destroy(State* state) {
    if (state->birthplace.is_here()) delete state;
  }

  const Birthplace birthplace;
  const std::unique_ptr<Engine> engine;
  ArenaEngine* const arena;
  const GroupOptions options;
  const Duration timeout;
  const std::shared_ptr<const GroupOrigin> origin;
  std::atomic<int> splits{0};

  std::mutex messenger_mutex;
  // State below is protected by messenger_mutex.
  std::unique_ptr<Mesh> messages;  // until the messenger has it
  std::unique_ptr<Messenger> messenger;

  std::mutex mutex;  // held while a collective runs in a caller
  std::condition_variable idle;
  std::condition_variable_any queued;
  // State below is protected by mutex.
  std::deque<std::pair<std::shared_ptr<Call>, Work>> queue;
  bool running = false;  // the thread is in a collective
  std::jthread thread;   // made with the first asynchronous call; last member: it must end first
};

ProcessGroup::ProcessGroup(std::unique_ptr<Engine> engine, const GroupOptions& options, std::unique_ptr<Mesh> messages,
                           std::shared_ptr<const GroupOrigin> origin)
    : state_(new State(std::move(engine), options, std::move(messages), std::move(origin)), &State::destroy) {}

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

Call ProcessGroup::complete(Call call, const CallOptions& options, ReduceOp op, int root) const {
  call.collective.reduce = op;
  call.collective.root = root;
  call.collective.name = hash_of(options.name);
  call.deadline = state_->deadline(options);
  return call;
}
void ProcessGroup::run(Call call, const CallOptions& options, ReduceOp op, int root) const {
  call = complete(std::move(call), options, op, root);
  state_->run([&](Engine& engine) { call.run(engine); });
}
Work ProcessGroup::start(Call call, const CallOptions& options, ReduceOp op, int root) const {
  return state_->start(std::make_shared<Call>(complete(std::move(call), options, op, root)));
}

std::vector<at::Tensor> ProcessGroup::one_for_each_rank(const at::Tensor& like) const {
  std::vector<std::int64_t> sizes{size()};
  for (const auto length : like.sizes()) sizes.push_back(length);
  return at::empty(sizes, like.options().requires_grad(false)).unbind(0);
}

void ProcessGroup::all_reduce(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  run(call_in_place(OpKind::all_reduce, tensors), options, op);
}
void ProcessGroup::reduce(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  run(call_in_place(OpKind::reduce, tensors), options, op, root);
}
void ProcessGroup::broadcast(at::TensorList tensors, int root, const CallOptions& options) const {
  run(call_in_place(OpKind::broadcast, tensors), options, ReduceOp::sum, root);
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& input, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs = one_for_each_rank(input);
  all_gather_into(outputs, input, options);
  return outputs;
}
void ProcessGroup::all_gather_into(at::TensorList outputs, const at::Tensor& input, const CallOptions& options) const {
  run(call_between(OpKind::all_gather, outputs, input), options);
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& input, int root, const CallOptions& options) const {
  const std::vector<at::Tensor> outputs = rank() == root ? one_for_each_rank(input) : std::vector<at::Tensor>();
  gather_into(outputs, input, root, options);
  return outputs;
}
void ProcessGroup::gather_into(at::TensorList outputs, const at::Tensor& input, int root,
                               const CallOptions& options) const {
  run(call_between(OpKind::gather, outputs, input), options, ReduceOp::sum, root);
}
void ProcessGroup::scatter(const at::Tensor& output, at::TensorList inputs, int root,
                           const CallOptions& options) const {
  run(call_between(OpKind::scatter, output, inputs), options, ReduceOp::sum, root);
}
void ProcessGroup::reduce_scatter(const at::Tensor& output, at::TensorList inputs, ReduceOp op,
                                  const CallOptions& options) const {
  run(call_between(OpKind::reduce_scatter, output, inputs), options, op);
}
void ProcessGroup::all_to_all(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  run(call_between(OpKind::all_to_all, outputs, inputs), options);
}

void ProcessGroup::barrier(const CallOptions& options) const {
  const Collective collective{.kind = OpKind::barrier, .name = hash_of(options.name)};
  state_->run([&](Engine& engine) { engine.run(collective, state_->deadline(options)); });
}

Work ProcessGroup::all_reduce_async(at::TensorList tensors, ReduceOp op, const CallOptions& options) const {
  return start(call_in_place(OpKind::all_reduce, tensors), options, op);
}
Work ProcessGroup::reduce_async(at::TensorList tensors, int root, ReduceOp op, const CallOptions& options) const {
  return start(call_in_place(OpKind::reduce, tensors), options, op, root);
}
Work ProcessGroup::broadcast_async(at::TensorList tensors, int root, const CallOptions& options) const {
  return start(call_in_place(OpKind::broadcast, tensors), options, ReduceOp::sum, root);
}
Work ProcessGroup::all_gather_into_async(at::TensorList outputs, const at::Tensor& input,
                                         const CallOptions& options) const {
  return start(call_between(OpKind::all_gather, outputs, input), options);
}
Work ProcessGroup::gather_into_async(at::TensorList outputs, const at::Tensor& input, int root,
                                     const CallOptions& options) const {
  return start(call_between(OpKind::gather, outputs, input), options, ReduceOp::sum, root);
}
Work ProcessGroup::scatter_async(const at::Tensor& output, at::TensorList inputs, int root,
                                 const CallOptions& options) const {
  return start(call_between(OpKind::scatter, output, inputs), options, ReduceOp::sum, root);
}
Work ProcessGroup::reduce_scatter_async(const at::Tensor& output, at::TensorList inputs, ReduceOp op,
                                        const CallOptions& options) const {
  return start(call_between(OpKind::reduce_scatter, output, inputs), options, op);
}
Work ProcessGroup::all_to_all_async(at::TensorList outputs, at::TensorList inputs, const CallOptions& options) const {
  return start(call_between(OpKind::all_to_all, outputs, inputs), options);
}

Work ProcessGroup::barrier_async(const CallOptions& options) const { return start(Call(), options); }

Messenger& ProcessGroup::messenger() const {
  state_->birthplace.check("a group");
  const std::lock_guard lock(state_->messenger_mutex);
  if (state_->messenger == nullptr) {
    if (state_->messages == nullptr) {
      throw Error(ErrorKind::invalid_argument, "this group was made for collectives only: it sends no messages");
    }
    state_->messenger = std::make_unique<Messenger>(std::move(state_->messages));
  }
  return *state_->messenger;
}

namespace {

std::uint64_t tag_of(int tag) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(tag)); }

// A Work that ends with the transfer; keeps the tensor until then.
Work work_of(const Transfer& transfer, std::shared_ptr<const TensorSegments> tensor, bool is_receive) {
  Work work;
  transfer.on_done([work, transfer, tensor = std::move(tensor), is_receive](std::exception_ptr error) {
    if (is_receive && !error) tensor->copy_back();
    work.complete(std::move(error), transfer.source());
  });
  return work;
}

}  // namespace

Work ProcessGroup::send_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "send", TensorSegments::Use::move);
  const Segment& whole = segments->segments().front();
  return work_of(messenger().send(peer, tag_of(tag), ByteSpan(whole.data, whole.bytes), state_->deadline(options)),
                 segments, false);
}

Work ProcessGroup::recv_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "recv", TensorSegments::Use::move);
  const Segment& whole = segments->segments().front();
  return work_of(
      messenger().receive(peer, tag_of(tag), MutableByteSpan(whole.data, whole.bytes), state_->deadline(options)),
      segments, true);
}

void ProcessGroup::send(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  send_async(tensor, peer, tag, options).wait();
}

int ProcessGroup::recv(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  const Work work = recv_async(tensor, peer, tag, options);
  work.wait();
  return work.source();
}

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) const {
  if (state_->origin == nullptr) {
    throw Error(ErrorKind::invalid_argument, "split: this group was made without a store, so no part of it can meet");
  }
  const Deadline deadline = Deadline::after(timeout());
  std::vector<std::int64_t> mine{color, key}, all(2 * static_cast<std::size_t>(size()));
  const auto tensor_of = [](std::vector<std::int64_t>& values) {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kLong);
  };
  all_gather_into(tensor_of(all), tensor_of(mine), {.name = "split"});
  std::vector<std::pair<std::int64_t, int>> members;  // key and rank
  for (int peer = 0; peer < size(); ++peer) {
    const auto at = 2 * static_cast<std::size_t>(peer);
    if (all[at] == color) members.emplace_back(all[at + 1], peer);
  }
  const int number = state_->splits++;
  if (color < 0) return std::nullopt;
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [unused, peer] : members) ranks.push_back(peer);
  return connect_part(*state_->origin, rank(), ranks, std::to_string(number) + "." + std::to_string(color),
                      state_->options, deadline);
}

std::optional<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) const {
  std::string text = "new_group of";
  std::vector<bool> seen(static_cast<std::size_t>(size()));
  for (const int each : ranks) {
    if (each < 0 || each >= size() || seen[static_cast<std::size_t>(each)]) {
      throw Error(ErrorKind::invalid_argument,
                  "new_group: " + std::to_string(each) +
                      (each < 0 || each >= size() ? " is not a rank of this group of " + std::to_string(size())
                                                  : " is named twice"));
    }
    seen[static_cast<std::size_t>(each)] = true;
    text.append(" ").append(std::to_string(each));
  }
  barrier({.name = text});  // whoever gives other ranks is told
  const auto found = std::find(ranks.begin(), ranks.end(), rank());
  return split(found == ranks.end() ? -1 : 0, static_cast<int>(found - ranks.begin()));
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

void ProcessGroup::abort(std::string_view reason) const noexcept {
  state_->engine->abort(reason);
  const std::lock_guard lock(state_->messenger_mutex);
  if (state_->messenger != nullptr) state_->messenger->abort(reason);
}

bool ProcessGroup::shares_memory() const { return state_->arena != nullptr; }

void ProcessGroup::drive(const std::function<void(ArenaEngine&)>& use) const {
  state_->run([&](Engine&) { use(*state_->arena); });
}

}  // namespace lockstep
