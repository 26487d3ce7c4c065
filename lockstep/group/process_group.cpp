#include "lockstep/group/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/group/arena_allocator.h"
#include "lockstep/group/call.h"
#include "lockstep/group/connect.h"
#include "lockstep/group/tensor_segments.h"
#include "lockstep/group/torch_errors.h"
#include "lockstep/group/turns.h"
#include "lockstep/messages/messenger.h"
#include "lockstep/messages/monitored_barrier.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostWorks = 256;  // that are kept to be used again

std::uint16_t line_of(const CallOptions& options) { return static_cast<std::uint16_t>(options.where.line()); }
// In the flight recording.
void end_record(const FlightLog& log, FlightTicket ticket, const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
    log.finish(ticket);
  } catch (const Error& failure) {
    log.fail(ticket, failure);
  } catch (const std::exception& failure) {
    log.fail(ticket, Error(ErrorKind::internal, failure.what()));
  }
}

}  // namespace

struct ProcessGroup::State {
  State(std::unique_ptr<Engine> made, const GroupOptions& chosen, std::unique_ptr<Mesh> for_messages,
        std::shared_ptr<const GroupOrigin> known)
      : engine(std::move(made)),
        arena(dynamic_cast<ArenaEngine*>(engine.get())),
        memory(engine->reads_device_memory() ? Memory::device : Memory::host),
        options(chosen),
        timeout(chosen.timeout),
        origin(std::move(known)),
        log(process_recorder(), origin == nullptr ? "without a name" : origin->name, engine->rank(), engine->size()),
        turns([this] { engine->abort("a call timed out before its turn came"); }),
        messages(std::move(for_messages)) {
    engine->set_flight_log(log);
    engine->set_after_mismatch(options.after_mismatch);
    engine->set_call_sites(options.call_sites);
    engine->set_first_report(options.first_report);
    if (arena != nullptr || messages == nullptr) return;
    // Ranks that do not see each other ask each other how they fare. A rank can answer from its first moment on.
    messenger = std::make_unique<Messenger>(std::move(messages), log, options.first_report);
    engine->set_failure_detector(messenger.get());
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      if (turns.is_taken() || !queue.empty()) engine->abort("the group was destroyed with collectives in flight");
    }
    thread.request_stop();
  }

  // Also where this rank has not sent a message yet: the others may wait for one.
  void abort_messages(std::string_view reason) noexcept {
    const std::lock_guard lock(messenger_mutex);
    if (messenger != nullptr) return messenger->abort(reason);
    if (messages != nullptr) lockstep::abort_messages(*messages, reason);
  }

  Deadline deadline(const CallOptions& options) const {
    if (options.deadline) return *options.deadline;
    return Deadline::after(options.timeout.value_or(timeout), coarse_clock());
  }

  // In the caller, behind everything that was issued before.
  template <class Run>
  void run(std::string_view operation, Deadline deadline, Run&& run_collective) {
    fork_guard.check("a group");
    noting_refusals([&] {
      if (!turns.take(deadline)) throw end_late(operation);
      const EndTurn end{turns};
      run_collective(*engine);
    });
  }

  template <class Check>
  void noting_refusals(Check&& check) const try {
    check();
  } catch (const Error& error) {
    note_refusal(engine->failure_note(), error);
    throw;
  }

  struct EndTurn {
    Turns& turns;
    ~EndTurn() { turns.leave(); }
  };

  // Of a call whose turn did not come in time. The ranks are out of step without it.
  Error end_late(std::string_view operation) const {
    std::string text = std::string(operation) + " timed out on rank " + std::to_string(engine->rank()) +
                       " before its turn came: the calls of a group run one after the other";
    if (const auto last = log.last_collective()) text += ", and the last one to begin is " + describe(*last);
    engine->abort(text);
    return Error(ErrorKind::timeout, text, {.rank = engine->rank(), .operation = std::string(operation)});
  }

  // What a collective needs besides its tensors. Kept for later ones.
  struct Task {
    Call call;
    Work work;  // until it is complete
    Turns::Place place;
  };
  using Tasks = std::list<Task>;

  // One task, which goes back when this ends, unless it was taken away.
  class Lease {
   public:
    explicit Lease(State& state) : state_(state) {
      const std::lock_guard lock(state.spare_mutex);
      if (state.spare.empty()) {
        task_.emplace_back();
      } else {
        task_.splice(task_.begin(), state.spare, state.spare.begin());
      }
    }
    ~Lease() {
      if (!task_.empty()) state_.put_back(task_);
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    Call& call() { return task_.front().call; }
    Tasks& task() { return task_; }

   private:
    State& state_;
    Tasks task_;
  };

  // An unfinished one: the one made longest ago, if nobody holds it any more.
  Work new_work() {
    const std::lock_guard lock(spare_mutex);
    if (next_work >= works.size()) next_work = 0;
    if (!works.empty() && works[next_work].renew()) return works[next_work++];
    const auto place = works.begin() + static_cast<std::ptrdiff_t>(next_work++);
    return works.size() < kMostWorks ? *works.insert(place, Work::start()) : *place = Work::start();
  }

  void put_back(Tasks& task) {
    task.front().call.clear();
    task.front().work = {};
    const std::lock_guard lock(spare_mutex);
    spare.splice(spare.begin(), task);
  }

  void run_now(Call& call) {
    run(to_string(call.collective().kind), call.deadline(), [&](Engine& engine) { call.run(engine); });
  }

  Work run_to_end(Lease& lease) {
    const Work work = new_work();
    std::exception_ptr error;
    try {
      run_now(lease.call());
    } catch (...) {
      error = std::current_exception();
    }
    work.complete(error);
    return work;
  }

  // On the group's thread.
  Work start(Lease& lease) {
    fork_guard.check("a group");
    const Work work = new_work();
    lease.task().front().work = work;
    Collective& collective = lease.call().collective();
    collective.ticket = log.issue(record_of(signature_of(collective, 0, 0)));
    {
      const std::lock_guard lock(mutex);
      if (!thread.joinable()) thread = std::jthread([this](const std::stop_token& stop) { serve(stop); });
      turns.line_up(lease.task().front().place, lease.call().deadline());  // in the order of the queue
      queue.splice(queue.end(), lease.task());
    }
    queued.notify_one();
    return work;
  }

  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (queued.wait(lock, stop, [this] { return !queue.empty(); })) {
      Tasks current;
      current.splice(current.begin(), queue, queue.begin());
      Task& task = current.front();
      lock.unlock();
      const bool has_turn = turns.await(task.place);
      std::exception_ptr error = run_queued(task.call, has_turn);
      task.call.clear();  // tensors go before the waiter is told
      // The next call finds the Work complete; and its waiter, who may end the group at once, the turn over.
      lock.lock();
      task.work.complete(std::move(error));
      if (has_turn) turns.leave();
      put_back(current);
    }
  }

  // What it failed with.
  std::exception_ptr run_queued(Call& call, bool has_turn) const {
    try {
      if (!has_turn) throw end_late(to_string(call.collective().kind));
      call.run(*engine);
      return nullptr;
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      end_record(log, call.collective().ticket, error);  // unless the engine has begun it, and recorded that
      return error;
    }
  }

  // In a forked child the state is never destroyed: it would wait for threads that are not there. The last handle may
  // lie in what a call keeps alive, and a thread cannot wait for its own end.
  static void destroy(State* state) {
    if (!state->fork_guard.is_here()) return;
    const std::thread::id here = std::this_thread::get_id();
    if (state->thread.get_id() != here && (state->messenger == nullptr || !state->messenger->runs_here())) {
      delete state;
      return;
    }
    try {
      std::thread([state] { delete state; }).detach();
    } catch (const std::system_error&) {  // then it stays
    }
  }

  const ForkGuard fork_guard;
  const std::unique_ptr<Engine> engine;
  ArenaEngine* const arena;
  const Memory memory;
  const GroupOptions options;
  const Duration timeout;
  const std::shared_ptr<const GroupOrigin> origin;
  std::atomic<int> splits{0};
  std::atomic<std::uint64_t> monitored_barriers{0};
  const FlightLog log;
  Turns turns;  // of the engine

  std::mutex messenger_mutex;
  // State below is protected by messenger_mutex.
  std::unique_ptr<Mesh> messages;  // until the messenger has it
  std::unique_ptr<Messenger> messenger;

  std::mutex spare_mutex;
  // State below is protected by spare_mutex.
  Tasks spare;
  std::vector<Work> works;  // handed out, to be used again; from next_work on and around by age
  std::size_t next_work = 0;

  std::mutex mutex;
  std::condition_variable_any queued;
  // State below is protected by mutex.
  Tasks queue;          // in the order in which they have lined up
  std::jthread thread;  // made with the first asynchronous call; last member: it must end first
};

ProcessGroup::ProcessGroup(std::unique_ptr<Engine> engine, const GroupOptions& options, std::unique_ptr<Mesh> messages,
                           std::shared_ptr<const GroupOrigin> origin)
    : state_(new State(std::move(engine), options, std::move(messages), std::move(origin)), &State::destroy) {}

int ProcessGroup::rank() const { return state_->engine->rank(); }
int ProcessGroup::size() const { return state_->engine->size(); }
std::string_view ProcessGroup::transport() const { return state_->engine->name(); }
Duration ProcessGroup::timeout() const { return state_->timeout; }

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
    state_->run("all_reduce", deadline, [&](Engine& engine) { engine.run(collective, deadline); });
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
    call.set(kind, outputs, inputs, {.rank = state.engine->rank(), .root = root, .memory = state.memory});
    call.collective().reduce = reduce;
    call.collective().order = options.order;
    call.collective().name = note_name(options.name);
    call.collective().number = options.number;
    call.collective().line = line_of(options);
    call.set_deadline(state.deadline(options));
  }
};

void ProcessGroup::run(const Plan& plan, const CallOptions& options) const {
  State::Lease lease(*state_);
  state_->noting_refusals([&] { plan.set(lease.call(), options, *state_); });
  state_->run_now(lease.call());
}

Work ProcessGroup::start(const Plan& plan, const CallOptions& options) const {
  State::Lease lease(*state_);
  state_->noting_refusals([&] { plan.set(lease.call(), options, *state_); });
  return options.in_caller ? state_->run_to_end(lease) : state_->start(lease);
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
  state_->run("barrier", deadline, [&](Engine& engine) { engine.run(collective, deadline); });
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

Messenger& ProcessGroup::messenger() const {
  state_->fork_guard.check("a group");
  const std::lock_guard lock(state_->messenger_mutex);
  if (state_->messenger == nullptr) {
    if (state_->messages == nullptr) {
      throw Error(ErrorKind::invalid_argument, "this group was made for collectives only: it sends no messages");
    }
    state_->messenger =
        std::make_unique<Messenger>(std::move(state_->messages), state_->log, state_->options.first_report);
  }
  return *state_->messenger;
}

namespace {

using Flow = TensorSegments::Flow;

std::uint64_t tag_of(int tag) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(tag)); }

FlightTicket record_message(const FlightLog& log, Direction direction, int peer, int tag,
                            const TensorSegments& tensor) {
  FlightRecord record;
  record.category = FlightCategory::message;
  record.set_operation(direction == Direction::send ? "send" : "receive");
  record.count = tensor.segments().front().bytes;
  record.dtype = DType::u8;
  record.peer = peer;
  record.tag = static_cast<std::uint32_t>(tag);
  return log.start(record);
}

// Posts a message. The Work ends with its transfer, and keeps the tensor until then.
template <class Post>
Work start_message(const FlightLog& log, Direction direction, int peer, int tag,
                   std::shared_ptr<const TensorSegments> tensor, Post post) {
  const FlightTicket ticket = record_message(log, direction, peer, tag, *tensor);
  try {
    const Work work = Work::start();
    const Request transfer = post();
    transfer.on_done([work, transfer, tensor = std::move(tensor), direction, log, ticket](std::exception_ptr error) {
      try {
        if (direction == Direction::receive && !error) tensor->copy_back();
      } catch (...) {
        error = std::current_exception();
      }
      end_record(log, ticket, error);
      work.complete(std::move(error), transfer.source());
    });
    return work;
  } catch (...) {  // refused before anything was sent
    end_record(log, ticket, std::current_exception());
    throw;
  }
}

}  // namespace

Work ProcessGroup::send_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "send", TensorSegments::Use::move, Flow::read);
  const Segment& whole = segments->segments().front();
  Messenger& messenger = this->messenger();
  return start_message(state_->log, Direction::send, peer, tag, segments, [&] {
    return messenger.send(peer, tag_of(tag), ByteSpan(whole.data, whole.bytes), state_->deadline(options));
  });
}

Work ProcessGroup::recv_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "recv", TensorSegments::Use::move, Flow::write);
  const Segment& whole = segments->segments().front();
  Messenger& messenger = this->messenger();
  return start_message(state_->log, Direction::receive, peer, tag, segments, [&] {
    return messenger.receive(peer, tag_of(tag), MutableByteSpan(whole.data, whole.bytes), state_->deadline(options));
  });
}

void ProcessGroup::send(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  send_async(tensor, peer, tag, options).wait();
}

int ProcessGroup::recv(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  const Work work = recv_async(tensor, peer, tag, options);
  work.wait();
  return work.source();
}

void ProcessGroup::monitored_barrier(const CallOptions& options, bool wait_all_ranks) const {
  const std::uint64_t number = state_->monitored_barriers++;
  if (size() == 1) return;
  FlightRecord record;
  record.set_operation("monitored_barrier");
  FlightTicket ticket = state_->log.start(record);
  try {
    lockstep::monitored_barrier(messenger(), number, options.timeout.value_or(timeout()), wait_all_ranks);
  } catch (const Error& error) {
    state_->log.fail(ticket, error);
    throw;
  }
  state_->log.finish(ticket);
}

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
  if (state_->arena == nullptr) return checked_empty(sizes, dtype);
  return empty_in_arena(state_->arena->arena().heap(), sizes, dtype);
}

bool ProcessGroup::is_shared(const at::Tensor& tensor) const {
  return state_->arena != nullptr && tensor.defined() && tensor.is_cpu() && tensor.has_storage() &&
         state_->arena->arena()
             .offset_of(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes())
             .has_value();
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

bool ProcessGroup::shares_memory() const { return state_->arena != nullptr; }

void ProcessGroup::drive(c10::function_ref<void(ArenaEngine&)> use) const {
  state_->run("a collective that its caller drives", state_->deadline({}), [&](Engine&) { use(*state_->arena); });
}

}  // namespace lockstep
