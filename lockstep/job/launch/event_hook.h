// An EventHook runs a program of the user's for each event of a job, with the event as JSON on its standard input: one
// at a time, in order, in a thread of its own, so it never delays the job. What the program prints goes to this
// process's standard error by lines; one that fails, or takes longer than kLimit and is killed, is a warning. post()
// and finish() from one thread, neither throws.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/job_event.h"

namespace lockstep::internal {

class EventHook {
 public:
  static constexpr Duration kLimit = std::chrono::seconds(30);
  static constexpr Duration kLimitOfStopped = std::chrono::seconds(3);  // for what is left of a job that was stopped
  static constexpr std::size_t kMostWaiting = 100;                      // events; of more, the newest are left out

  // `path`: the program's file; empty: nothing is run. Throws std::system_error if no thread can be made.
  explicit EventHook(std::string path, Duration limit = kLimit);
  // Kills what runs.
  ~EventHook();
  EventHook(const EventHook&) = delete;
  EventHook& operator=(const EventHook&) = delete;

  bool is_wanted() const { return state_ != nullptr; }
  void post(const JobEvent& event);
  // The job is over, since somebody has asked it to stop or not: waits for what is left, for the limit at most, or
  // until `stop_fd` can be read (-1: none).
  void finish(bool was_asked, int stop_fd = -1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::internal
