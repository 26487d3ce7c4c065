#include "lockstep/comm/group/work.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {

using namespace internal;

Work Work::start() {
  Work work;
  work.state_ = std::make_shared<State>();
  return work;
}

Work::State& Work::state() const {
  if (state_ != nullptr) return *state_;
  throw Error(ErrorKind::invalid_argument,
              "a default-constructed Work refers to no operation; use the one that an *_async call returned");
}

void Work::wait(Deadline deadline) const {
  State& state = this->state();
  std::unique_lock lock(state.mutex);
  if (!wait_until(state.changed, lock, deadline, [&] { return state.done; })) {
    throw Error(ErrorKind::timeout, "Work::wait() timed out: the operation has not finished, and continues");
  }
  if (state.error) std::rethrow_exception(state.error);
}

bool Work::is_completed() const {
  State& state = this->state();
  const std::lock_guard lock(state.mutex);
  return state.done;
}

std::exception_ptr Work::exception() const {
  State& state = this->state();
  const std::lock_guard lock(state.mutex);
  return state.error;
}

int Work::source() const {
  State& state = this->state();
  const std::lock_guard lock(state.mutex);
  return state.source;
}

void Work::complete(std::exception_ptr error, int source) const {
  State& state = this->state();
  {
    const std::lock_guard lock(state.mutex);
    state.done = true;
    state.error = std::move(error);
    state.source = source;
  }
  state.changed.notify_all();
}

bool Work::renew() const {
  if (state_.use_count() != 1) return false;
  const std::lock_guard lock(state_->mutex);  // behind whatever the last other handle did
  state_->done = false;
  state_->error = nullptr;
  state_->source = -1;
  return true;
}

}  // namespace lockstep
