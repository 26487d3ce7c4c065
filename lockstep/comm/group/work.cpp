#include "lockstep/comm/group/work.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/comm/group/work_control.h"

namespace lockstep {

using namespace internal;

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool done = false;
  std::exception_ptr error;
  int source = -1;
  WorkControl::Join join;
  std::shared_ptr<WorkControl::OnDevice> device;
  std::shared_ptr<std::atomic<bool>> told;
};

Work WorkControl::start(std::shared_ptr<std::atomic<bool>> told) {
  Work work;
  work.state_ = std::make_shared<Work::State>();
  work.state_->told = std::move(told);
  return work;
}

void WorkControl::attach(const Work& work, std::shared_ptr<OnDevice> device) {
  Work::State& state = work.state();
  const std::lock_guard lock(state.mutex);
  if (!state.done) state.device = std::move(device);
}

Work::State& Work::state() const {
  if (state_ != nullptr) return *state_;
  throw Error(ErrorKind::invalid_argument,
              "a default-constructed Work refers to no operation; use the one that an *_async call returned");
}

void Work::wait(Deadline deadline) const {
  State& state = this->state();
  std::unique_lock lock(state.mutex);
  const bool only_streams_wait = state.device != nullptr && deadline.is_never();
  if (!only_streams_wait && !wait_until(state.changed, lock, deadline, [&] { return state.done; })) {
    throw Error(ErrorKind::timeout,
                "Work::wait() timed out: the operation has not finished and continues in the background; wait() may be "
                "called again");
  }
  if (state.error && state.told != nullptr) *state.told = true;
  if (state.error) std::rethrow_exception(state.error);
  if (const auto device = state.device) {
    lock.unlock();
    return device->join();
  }
  if (!state.join) return;
  const WorkControl::Join join = state.join;
  lock.unlock();
  join();
}

bool Work::is_completed() const {
  State& state = this->state();
  const std::lock_guard lock(state.mutex);
  return state.done || (state.device != nullptr && state.device->is_done());
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

void WorkControl::complete(const Work& work, std::exception_ptr error, int source, Join join) {
  Work::State& state = work.state();
  std::shared_ptr<OnDevice> device;  // it may hold the work
  {
    const std::lock_guard lock(state.mutex);
    device = std::move(state.device);
    state.done = true;
    state.error = std::move(error);
    state.source = source;
    state.join = std::move(join);
  }
  state.changed.notify_all();
}

bool WorkControl::renew(const Work& work) {
  if (work.state_.use_count() != 1) return false;
  Work::State& state = *work.state_;
  const std::lock_guard lock(state.mutex);  // after the last access of another handle
  state.done = false;
  state.error = nullptr;
  state.source = -1;
  state.join = nullptr;
  return true;
}

}  // namespace lockstep
