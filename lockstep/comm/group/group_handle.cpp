#include "lockstep/comm/group/group_handle.h"

#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/comm/adapters/backends.h"
#include "lockstep/comm/group/arena_allocator.h"
#include "lockstep/comm/group/connect.h"
#include "lockstep/comm/group/group_state.h"
#include "lockstep/comm/group/tensor_segments.h"

namespace lockstep {

using namespace internal;

namespace {

DeviceCalls::Policy device_policy(std::string_view backend) {
  if (backend.empty()) return DeviceCalls::Policy::automatic;
  return backend != kNativeBackend && is_native(backend) ? DeviceCalls::Policy::required : DeviceCalls::Policy::never;
}

JobRanks job_ranks_of(const GroupOrigin* origin) {
  std::vector<int> ranks;
  if (origin == nullptr) return {};
  for (const Member& member : origin->membership.members) {
    if (member.job_rank < 0) return {};
    ranks.push_back(member.job_rank);
  }
  return JobRanks::of(ranks);
}

}  // namespace

GroupHandle::State::State(std::unique_ptr<Engine> made, const GroupOptions& chosen, std::unique_ptr<Mesh> for_messages,
                          std::shared_ptr<const GroupOrigin> known)
    : engine(std::move(made)),
      heap(engine->heap()),
      options(chosen),
      origin(std::move(known)),
      log(process_recorder(), origin == nullptr ? "without a name" : origin->name, engine->rank(), engine->size(),
          job_ranks_of(origin.get())),
      messages(std::move(for_messages)),
      devices(*engine, calls, log, device_policy(options.backend)),
      calls(*engine, log) {
  engine->set_flight_log(log);
  engine->set_call_sites(options.call_sites);
  engine->set_first_report(options.first_report);
  if (heap != nullptr || messages == nullptr) return;
  // Ranks that do not see each other ask each other how they fare. A rank can answer from its first moment on.
  the_messenger = std::make_unique<Messenger>(std::move(messages), log, options.first_report);
  engine->set_failure_detector(the_messenger.get());
}

void GroupHandle::State::destroy(State* state) {
  if (!state->fork_guard.is_here()) return;
  const bool has_messenger = state->the_messenger != nullptr;
  if (!state->calls.runs_here() && !(has_messenger && state->the_messenger->runs_here())) {
    delete state;
    return;
  }
  try {
    const SignalBlock block = SignalBlock::of_new_thread();
    std::thread([state] { delete state; }).detach();
  } catch (const std::system_error&) {  // then it stays
  }
}

Deadline GroupHandle::State::deadline(const CallOptions& call) const {
  if (call.deadline) return *call.deadline;
  return Deadline::after(call.timeout.value_or(options.timeout), coarse_clock());
}

Messenger& GroupHandle::State::messenger() {
  fork_guard.check("a group");
  const std::lock_guard lock(messenger_mutex);
  if (the_messenger == nullptr) {
    if (messages == nullptr) {
      throw Error(ErrorKind::invalid_argument,
                  "this group cannot send or receive messages: its backend has collectives only");
    }
    the_messenger = std::make_unique<Messenger>(std::move(messages), log, options.first_report);
  }
  return *the_messenger;
}

void GroupHandle::State::abort_messages(std::string_view reason) noexcept {
  const std::lock_guard lock(messenger_mutex);
  if (the_messenger != nullptr) return the_messenger->abort(reason);
  if (messages != nullptr) internal::abort_messages(*messages, reason);
}

GroupHandle::GroupHandle(std::unique_ptr<Engine> engine, const GroupOptions& options, std::unique_ptr<Mesh> messages,
                         std::shared_ptr<const GroupOrigin> origin)
    : state_(new State(std::move(engine), options, std::move(messages), std::move(origin)), &State::destroy) {}

int GroupHandle::rank() const { return state_->engine->rank(); }
int GroupHandle::size() const { return state_->engine->size(); }
std::string_view GroupHandle::transport() const { return state_->engine->name(); }
Duration GroupHandle::timeout() const { return state_->options.timeout; }
const std::optional<c10::Device>& GroupHandle::device() const { return state_->options.device; }

at::Tensor GroupHandle::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  state_->fork_guard.check("a group");  // a child has none of the memory
  if (state_->heap == nullptr) return checked_empty(sizes, dtype);
  return empty_in_arena(state_->heap, sizes, dtype);
}

bool GroupHandle::is_shared(const at::Tensor& tensor) const {
  return state_->heap != nullptr && state_->fork_guard.is_here() && tensor.defined() && tensor.is_cpu() &&
         tensor.has_storage() && state_->heap->owns(tensor.const_data_ptr());
}

bool GroupHandle::supports(OpKind kind, ReduceOp op, at::ScalarType dtype, at::DeviceType device) const {
  if (device == at::kMeta) return kind == OpKind::barrier;
  return state_->engine->supports(kind, op, known_dtype(dtype).value_or(DType::opaque));
}

void GroupHandle::abort(std::string_view reason) const noexcept {
  state_->engine->abort(reason);
  state_->devices.abort(reason);
  state_->abort_messages(reason);
}

void GroupHandle::await_device_calls() const { state_->devices.wait_untold(); }

void GroupHandle::note_failure(std::string_view what, std::string_view text) const noexcept {
  state_->engine->failure_note()->note(what, text);
}

std::string GroupHandle::noted_failure() const { return state_->engine->failure_note()->text(); }

const std::shared_ptr<ArenaHeap>& GroupHandle::heap() const { return state_->heap; }

CallTimes GroupHandle::call_times(TimePoint now) const { return state_->engine->meter().at(now); }

GroupHandle::Posted GroupHandle::post(const Collective& collective, std::shared_ptr<const void> keeps) const {
  const Deadline deadline = state_->deadline({});
  Posted posted;
  if (state_->engine->advances_in_poll()) {
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

void GroupHandle::poll() const {
  if (!state_->engine->advances_in_poll()) return;
  state_->calls.run_if_free([](Engine& engine) { engine.poll(); });
}

void GroupHandle::wait(const Posted& posted) const {
  if (!state_->engine->advances_in_poll()) return posted.work_.wait();
  const Deadline deadline = state_->deadline({});
  state_->calls.run("a posted collective", deadline, [&](Engine& engine) { engine.wait(posted.number_, deadline); });
}

void GroupHandle::note_exception(std::string_view what) const noexcept {
  try {
    throw;
  } catch (const Error& error) {
    // Others are of the group's calls, and tell what another rank did.
    const ErrorKind kind = error.kind();
    if (kind == ErrorKind::invalid_argument || kind == ErrorKind::internal || kind == ErrorKind::corrupt_data) {
      note_failure(what, error.what());
    }
  } catch (const std::exception& error) {
    note_failure(what, error.what());
  } catch (...) {
    note_failure(what, "the thrown object is not a std::exception");
  }
}

}  // namespace lockstep
