#include "lockstep/comm/group/call_queue.h"

#include <exception>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/group/work_control.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostWorks = 256;  // that are kept to be used again

}  // namespace

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

CallQueue::CallQueue(Engine& engine, const FlightLog& log)
    : engine_(engine), log_(log), turns_([this] { engine_.abort("a call timed out before its turn came"); }) {}

CallQueue::~CallQueue() {
  {
    const std::lock_guard lock(mutex_);
    const bool is_busy = turns_.is_taken() && !is_call_over_;
    if (is_busy || !queue_.empty()) engine_.abort("the group was destroyed with collectives in flight");
  }
  thread_.request_stop();
}

CallQueue::Lease::Lease(CallQueue& queue) : queue_(queue) {
  const std::lock_guard lock(queue_.spare_mutex_);
  if (queue_.spare_.empty()) {
    task_.emplace_back();
  } else {
    task_.splice(task_.begin(), queue_.spare_, queue_.spare_.begin());
  }
}

CallQueue::Lease::~Lease() {
  if (!task_.empty()) queue_.put_back(task_);
}

// An unfinished one: the one made longest ago, if nobody holds it any more.
Work CallQueue::new_work() {
  const std::lock_guard lock(spare_mutex_);
  if (next_work_ >= works_.size()) next_work_ = 0;
  if (!works_.empty() && WorkControl::renew(works_[next_work_])) return works_[next_work_++];
  const auto place = works_.begin() + static_cast<std::ptrdiff_t>(next_work_++);
  return works_.size() < kMostWorks ? *works_.insert(place, WorkControl::start()) : *place = WorkControl::start();
}

void CallQueue::put_back(Tasks& task) {
  task.front().call.clear();
  task.front().work = {};
  const std::lock_guard lock(spare_mutex_);
  spare_.splice(spare_.begin(), task);
}

void CallQueue::run(Lease& lease) {
  Call& call = lease.call();
  run(to_string(call.collective().kind), call.deadline(), [&](Engine& engine) { call.run(engine); });
}

Work CallQueue::run_to_end(Lease& lease) {
  const Work work = new_work();
  std::exception_ptr error;
  try {
    run(lease);
  } catch (...) {
    error = std::current_exception();
  }
  WorkControl::complete(work, error, -1, lease.call().done().waiter());
  return work;
}

Work CallQueue::start(Lease& lease) {
  fork_guard_.check("a group");
  const Work work = new_work();
  Task& task = lease.task_.front();
  task.work = work;
  Collective& collective = task.call.collective();
  if (collective.ticket.number == 0) collective.ticket = log_.issue(record_of(signature_of(collective, 0, 0)));
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      const SignalBlock block = SignalBlock::of_new_thread();
      thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
    }
    turns_.line_up(task.place, task.call.deadline());  // in the order of the queue
    queue_.splice(queue_.end(), lease.task_);
  }
  queued_.notify_one();
  return work;
}

void CallQueue::serve(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (queued_.wait(lock, stop, [this] { return !queue_.empty(); })) {
    Tasks current;
    current.splice(current.begin(), queue_, queue_.begin());
    Task& task = current.front();
    lock.unlock();
    const bool has_turn = turns_.await(task.place);
    std::exception_ptr error = run_queued(task.call, has_turn);
    WorkControl::Join join = task.call.done().waiter();
    lock.lock();
    is_call_over_ = has_turn;
    lock.unlock();
    task.call.clear();  // tensors go before the waiter is told; the last handle of the group may go with them
    // The next call finds the Work complete; and its waiter, who may end the group at once, the turn over.
    lock.lock();
    WorkControl::complete(task.work, std::move(error), -1, std::move(join));
    if (has_turn) turns_.leave();
    is_call_over_ = false;
    put_back(current);
  }
}

// What it failed with.
std::exception_ptr CallQueue::run_queued(Call& call, bool has_turn) const {
  try {
    if (!has_turn) {
      throw end_late(describe(record_of(signature_of(call.collective(), 0, 0)), process_recorder().names()));
    }
    call.run_aside(engine_);
    return nullptr;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    end_record(log_, call.collective().ticket, error);  // unless the engine has begun it, and recorded that
    if (call.comparison() != nullptr) call.comparison()->failed(error);
    return error;
  }
}

// Of a call whose turn did not come in time. The ranks are out of step without it.
Error CallQueue::end_late(std::string_view operation) const {
  std::string text = std::string(operation) + " timed out on rank " + std::to_string(engine_.rank()) +
                     " before its turn came: a group runs its calls one at a time";
  if (const auto last = log_.last_collective()) {
    text += ", and the last that it started is " + describe(*last, process_recorder().names());
  }
  engine_.abort(text);
  const std::string_view kind = operation.substr(0, operation.find_first_of("( ,"));
  return Error(ErrorKind::timeout, text, {.rank = engine_.rank(), .operation = std::string(kind)});
}

}  // namespace lockstep::internal
