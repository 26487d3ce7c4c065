// A WaitMonitor knows for which ranks an exchange waits. It asks those ranks for a heartbeat, logs that the exchange
// waits, and names them once the deadline has passed. Exchange -> WaitMonitor -> Links, FailureDetector. One thread at
// a time; never blocks.
#pragma once

#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/collective/links.h"
#include "lockstep/comm/health/failure_detector.h"
#include "lockstep/comm/health/wait_reports.h"

namespace lockstep::internal {

class WaitMonitor {
 public:
  // Borrowed.
  WaitMonitor(Links& links, const LinkTuning& tuning) : links_(links), tuning_(tuning) {}

  // The detector to ask about missing ranks. Borrowed; null: none.
  void set_failure_detector(FailureDetector* detector) { detector_ = detector; }
  void set_first_report(Duration first) { first_report_ = first; }

  // A collective begins.
  void begin(Route route);
  // To be called when nothing moves: Error{timeout} if the deadline has passed; else announces this rank's call in a
  // tree and looks after the ranks that are waited for, if it is time to, and returns whether it was.
  bool look(Deadline deadline);
  // When that will be.
  Deadline next_look() const;

  // After a timeout, for LinkEngine::blame(): "rank 2 (host b, pid 71) has not entered it: alive, ...; ..." and the
  // first of the missing ranks, or -1. Silent ones come first, then those that have not come; those that came may well
  // be waiting for them.
  struct Missing {
    int first = -1;
    std::string text;
  };
  Missing missing() const;

 private:
  struct Straggler;

  // In a tree all announce their calls before the deadline.
  bool is_needed() const { return detector_ != nullptr || route_ == Route::tree; }
  TimePoint first_look(TimePoint now, Deadline deadline) const;
  void ask_around();
  bool may_hold_up(int peer) const;
  bool holds_up(int peer) const;
  // Why this rank waits, as far as that is because of the peer.
  std::string wait_reason(int peer) const;
  Straggler straggler(int peer) const;

  Links& links_;
  const LinkTuning& tuning_;
  FailureDetector* detector_ = nullptr;
  Duration first_report_ = kFirstReport;

  // Of this collective.
  Route route_ = Route::flat;
  TimePoint next_look_;    // unset until it waits
  TimePoint waits_since_;  // once next_look_ is set
  bool has_warned_ = false;
  WaitReports reports_;
};

}  // namespace lockstep::internal
