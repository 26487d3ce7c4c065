// A CallQueue runs the calls of one rank on its engine: one at a time, in the order in which they were made, blocking
// ones in the caller, the others on a thread of its own. ProcessGroup -> CallQueue -> engine. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/group/call.h"
#include "lockstep/comm/group/turns.h"
#include "lockstep/comm/group/work.h"

namespace lockstep::internal {

// An Error that `check` throws is noted for the other ranks; see FailureNote.
template <class Check>
void noting_refusals(Engine& engine, Check&& check) try {
  check();
} catch (const Error& error) {
  note_refusal(*engine.failure_note(), error);
  throw;
}

// Whether a caller knows that the group has failed. Shared by all who may tell; any thread.
using IsTold = std::shared_ptr<std::atomic<bool>>;

class CallQueue {
 public:
  // Both are borrowed.
  CallQueue(Engine& engine, const FlightLog& log);
  // Ends the group if calls are unfinished.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Runs `use` in the caller, after everything that was issued before. Error{timeout}, which ends the group, if its
  // turn does not start before the deadline.
  template <class Use>
  void run(std::string_view operation, Deadline deadline, Use&& use) {
    fork_guard_.check("a group");
    try {
      noting_refusals(engine_, [&] {
        if (!turns_.take(deadline)) throw end_late(operation);
        const Turns::End end(turns_);
        use(engine_);
      });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::invalid_argument) *is_told_ = true;
      throw;
    }
  }
  // The same, or does nothing if it is another call's turn.
  template <class Use>
  void run_if_free(Use&& use) {
    fork_guard_.check("a group");
    if (!turns_.take_if_free()) return;
    const Turns::End end(turns_);
    use(engine_);
  }

 private:
  // What a collective needs besides its tensors. Kept for later ones.
  struct Task {
    Call call;
    Work work;  // until it is complete
    Turns::Place place;
  };
  using Tasks = std::list<Task>;

 public:
  // A call that is being made: it goes back when this ends, unless start() has taken it away.
  class Lease {
   public:
    explicit Lease(CallQueue& queue);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    Call& call() { return task_.front().call; }

   private:
    friend class CallQueue;
    CallQueue& queue_;
    Tasks task_;
  };

  // In the caller.
  void run(Lease& lease);
  // The same; what it fails with is for the Work, which is complete.
  Work run_to_end(Lease& lease);
  // On the queue's thread.
  Work start(Lease& lease);

  const IsTold& is_told() const { return is_told_; }
  // Whether the calling thread is the queue's own.
  bool runs_here() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  Work new_work();
  void put_back(Tasks& task);
  void serve(const std::stop_token& stop);
  std::exception_ptr run_queued(Call& call, bool has_turn) const;
  Error end_late(std::string_view operation) const;

  const ForkGuard fork_guard_;
  Engine& engine_;
  const FlightLog& log_;
  const IsTold is_told_ = std::make_shared<std::atomic<bool>>(false);
  Turns turns_;

  std::mutex spare_mutex_;
  // State below is protected by spare_mutex_.
  Tasks spare_;
  std::vector<Work> works_;  // handed out, to be used again; from next_work_ on and around by age
  std::size_t next_work_ = 0;

  std::mutex mutex_;
  std::condition_variable_any queued_;
  // State below is protected by mutex_.
  Tasks queue_;                // in the order in which they have lined up
  bool is_call_over_ = false;  // of the thread, which still has its turn
  std::jthread thread_;        // made with the first asynchronous call; last member: it must end first
};

// Ends the flight record of what has failed with the error, or succeeded if there is none.
void end_record(const FlightLog& log, FlightTicket ticket, const std::exception_ptr& error);

}  // namespace lockstep::internal
