#include "lockstep/comm/messages/request.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/wait_until.h"

namespace lockstep {

using namespace internal;

namespace {

void call(const RequestState::Callback& callback, const std::exception_ptr& error) {
  try {
    callback(error);
  } catch (const std::exception& thrown) {
    log_error(fmt::format("a message's completion callback threw: {}", thrown.what()));
  } catch (...) {
    log_error("a message's completion callback threw something other than a std::exception");
  }
}

}  // namespace

std::string describe(const Envelope& envelope) {
  const bool sends = envelope.direction == Direction::send;
  return fmt::format("{} of {} bytes with tag {} {} {}", sends ? "send" : "receive", envelope.bytes, envelope.tag,
                     sends ? "to" : "from",
                     envelope.peer == kAnySource ? "any rank" : fmt::format("rank {}", envelope.peer));
}

void RequestState::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!wait_until(completed_, lock, deadline, [&] { return is_completed_; })) {
    throw Error(
        ErrorKind::timeout,
        describe(envelope_) +
            " did not complete before the deadline; it continues in the background, and wait() may be called again",
        {.peer = envelope_.peer});
  }
  if (error_) std::rethrow_exception(error_);
}

bool RequestState::is_completed() const {
  const std::lock_guard lock(mutex_);
  return is_completed_;
}

int RequestState::source() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

void RequestState::on_done(Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_completed_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  call(callback, error_);
}

void RequestState::complete(int source, std::exception_ptr error) {
  std::vector<Callback> callbacks;
  {
    const std::lock_guard lock(mutex_);
    is_completed_ = true;
    source_ = error ? -1 : source;
    error_ = std::move(error);
    callbacks.swap(callbacks_);
  }
  completed_.notify_all();
  for (const Callback& each : callbacks) call(each, error_);
}

}  // namespace lockstep
