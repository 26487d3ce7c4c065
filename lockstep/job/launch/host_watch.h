// A HostWatch looks at the ranks of one host of a job, which may be on several: none of them can tell alone whether it
// hangs. It says what it sees, for the first host to decide (elastic/job_hang.h), and prints the stacks of its ranks
// when that asks for them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/launch/flight_recordings.h"
#include "lockstep/job/launch/hang_text.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_output.h"
#include "lockstep/job/launch/tree_guest.h"

namespace lockstep::internal {

// What the ranks of a host do.
struct HostSight {
  bool is_still = false;              // nothing has moved for a while
  TimePoint last_event{};             // the last time that something moved
  std::vector<RankSight> ranks = {};  // those that live; times are of the host's own clock
};

struct HostWatchContext {
  const FlightRecordings& recordings;
  int first_rank = 0;
  RankOutput& output;
  std::string host = {};  // its name; empty if the job is on it alone
  std::function<void(HostSight)> report = {};
};

class HostWatch : public TreeGuest {
 public:
  // Prints the stacks of all ranks soon; those of `first` before the others'.
  virtual void tell_stacks(const std::vector<int>& first) = 0;
  // How a rank crashed, in lines; empty if it did not. Takes 3 s at most.
  virtual std::vector<std::string> crash_stack(const RankEnd& end) const = 0;
};

// `tell_after`: of HangOptions. What the context refers to is borrowed.
std::unique_ptr<HostWatch> make_host_watch(Duration tell_after, HostWatchContext context);

}  // namespace lockstep::internal
