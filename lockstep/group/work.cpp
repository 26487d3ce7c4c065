#include "lockstep/group/work.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

void Work::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  const auto done = [&] { return state_->done; };
  if (deadline.is_never()) {
    state_->changed.wait(lock, done);
  } else if (!state_->changed.wait_until(lock, deadline.when(), done)) {
    throw Error(ErrorKind::timeout, "the collective that Work::wait() waited for has not finished; it goes on");
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Work::is_completed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

std::exception_ptr Work::exception() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

int Work::source() const {
  const std::lock_guard lock(state_->mutex);
  return state_->source;
}

void Work::complete(std::exception_ptr error, int source) const {
  {
    const std::lock_guard lock(state_->mutex);
    state_->done = true;
    state_->error = std::move(error);
    state_->source = source;
  }
  state_->changed.notify_all();
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
