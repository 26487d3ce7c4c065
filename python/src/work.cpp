#include "work.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::python {

void Started::wait(Deadline deadline) const {
  if (before.empty()) return work.wait(deadline);
  const auto wait_for_end = [deadline](const Work& part) {
    try {
      part.wait(deadline);
    } catch (...) {
      if (!part.is_completed()) throw;
    }
  };
  for (const Work& part : before) wait_for_end(part);  // also after a failure: the others still use their tensors
  wait_for_end(work);
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
}

bool Started::is_completed() const {
  return work.is_completed() && std::all_of(before.begin(), before.end(), std::mem_fn(&Work::is_completed));
}

std::exception_ptr Started::exception() const {
  for (const Work& part : before) {
    if (std::exception_ptr error = part.exception()) return error;
  }
  return work.exception();
}

TorchWork::TorchWork(int rank, c10d::OpType type, const char* title, const std::optional<Tensors>& inputs,
                     Tensors outputs, const std::shared_ptr<Completer>& completer,
                     const std::function<Started()>& start)
    : c10d::Work(rank, type, title, inputs), outputs_(std::move(outputs)), completer_(completer) {
  started_ = with_torch_errors(start);
}

bool TorchWork::isCompleted() {
  if (!started_.is_completed()) return false;
  settle();
  return true;
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  with_torch_errors([&] {
    try {
      started_.wait(timeout <= kNoTimeout ? Deadline::never() : Deadline::after(std::min(timeout, kLongestTimeout)));
    } catch (const Error&) {
      if (!started_.is_completed()) throw;
    }
  });
  settle();
  return c10d::Work::wait();
}

void TorchWork::settle() {
  try {
    started_.wait();
  } catch (...) {  // exception() has it
  }
  c10::intrusive_ptr<c10::ivalue::Future> listeners;
  {
    const std::lock_guard lock(settling_);
    if (settled_) return;
    const std::exception_ptr error = started_.exception();
    settled_ = true;
    listeners = future_;
    finish(error ? as_torch_error(error) : nullptr);
  }
  if (listeners) tell(*listeners);  // outside the lock: listeners may wait for this work again
}

void TorchWork::tell(c10::ivalue::Future& future) {
  if (const auto error = exception()) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

int TorchWork::sourceRank() const {
  TORCH_CHECK(started_.source, "only a received message has a source rank");
  return started_.source();
}

std::vector<at::Tensor> TorchWork::result() { return outputs_; }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  bool follow = false;
  {
    const std::lock_guard lock(settling_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      follow = !settled_;
      if (settled_) tell(*future_);  // nobody can listen yet
    }
  }
  if (follow) settle_in_background();
  return future_;
}

void TorchWork::settle_in_background() {
  const auto self = c10::intrusive_ptr<TorchWork>::reclaim_copy(this);
  if (const auto completer = completer_.lock()) {
    completer->add(self);
  } else {
    settle();  // the group has gone, so its works have ended
  }
}

struct Completer::State {
  std::mutex mutex;
  std::condition_variable_any changed;
  // State below is protected by mutex.
  std::deque<c10::intrusive_ptr<TorchWork>> queue;
  std::thread::id settler;  // who settles now; none while nobody does
  int idle = 0;             // threads that could

  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    while (changed.wait(lock, stop, [this] { return !queue.empty() && settler == std::thread::id(); })) {
      settler = std::this_thread::get_id();
      --idle;
      auto work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work->settle();
      // Not under the mutex: its listeners' end needs the interpreter's lock, whose owner may be in add().
      work.reset();
      lock.lock();
      ++idle;
      if (settler == std::this_thread::get_id()) settler = {};
    }
    --idle;
  }
};

Completer::Completer() : state_(std::make_shared<State>()) {}

Completer::~Completer() {
  for (std::jthread& thread : threads_) {
    thread.request_stop();
    // A listener may hold the last reference to the group: a thread cannot join itself.
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();
  }
}

void Completer::start_thread() {
  ++state_->idle;
  const internal::SignalBlock block = internal::SignalBlock::of_new_thread();
  threads_.emplace_back([state = state_](const std::stop_token& stop) { state->serve(stop); });
}

void Completer::add(c10::intrusive_ptr<TorchWork> work) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->settler == std::this_thread::get_id()) state_->settler = {};  // a listener, which may wait for it
    if (state_->settler == std::thread::id() && state_->idle == 0) start_thread();
    state_->queue.push_back(std::move(work));
  }
  state_->changed.notify_all();
}

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const Error& lockstep_error) {
      if (lockstep_error.kind() == ErrorKind::invalid_argument) C10_THROW_ERROR(ValueError, lockstep_error.what());
      std::string text = lockstep_error.what();
      if (lockstep_error.kind() == ErrorKind::timeout) {
        text += "; the timeout of a group is set in init_process_group() or new_group()";
      }
      C10_THROW_ERROR(DistBackendError, text);
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace lockstep::python
