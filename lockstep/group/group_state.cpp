#include "lockstep/group/group_state.h"

#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/tsc_clock.h"
#include "lockstep/group/connect.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {

ProcessGroup::State::State(std::unique_ptr<Engine> made, const GroupOptions& chosen, std::unique_ptr<Mesh> for_messages,
                           std::shared_ptr<const GroupOrigin> known)
    : engine(std::move(made)),
      heap(engine->heap()),
      options(chosen),
      origin(std::move(known)),
      log(process_recorder(), origin == nullptr ? "without a name" : origin->name, engine->rank(), engine->size()),
      messages(std::move(for_messages)),
      calls(*engine, log) {
  engine->set_flight_log(log);
  engine->set_after_mismatch(options.after_mismatch);
  engine->set_call_sites(options.call_sites);
  engine->set_first_report(options.first_report);
  if (heap != nullptr || messages == nullptr) return;
  // Ranks that do not see each other ask each other how they fare. A rank can answer from its first moment on.
  the_messenger = std::make_unique<Messenger>(std::move(messages), log, options.first_report);
  engine->set_failure_detector(the_messenger.get());
}

void ProcessGroup::State::destroy(State* state) {
  if (!state->fork_guard.is_here()) return;
  const bool has_messenger = state->the_messenger != nullptr;
  if (!state->calls.runs_here() && !(has_messenger && state->the_messenger->runs_here())) {
    delete state;
    return;
  }
  try {
    std::thread([state] { delete state; }).detach();
  } catch (const std::system_error&) {  // then it stays
  }
}

Deadline ProcessGroup::State::deadline(const CallOptions& call) const {
  if (call.deadline) return *call.deadline;
  return Deadline::after(call.timeout.value_or(options.timeout), coarse_clock());
}

Messenger& ProcessGroup::State::messenger() {
  fork_guard.check("a group");
  const std::lock_guard lock(messenger_mutex);
  if (the_messenger == nullptr) {
    if (messages == nullptr) {
      throw Error(ErrorKind::invalid_argument, "this group was made for collectives only: it sends no messages");
    }
    the_messenger = std::make_unique<Messenger>(std::move(messages), log, options.first_report);
  }
  return *the_messenger;
}

void ProcessGroup::State::abort_messages(std::string_view reason) noexcept {
  const std::lock_guard lock(messenger_mutex);
  if (the_messenger != nullptr) return the_messenger->abort(reason);
  if (messages != nullptr) lockstep::abort_messages(*messages, reason);
}

}  // namespace lockstep
