// HangWatch notices when the ranks of this machine hang: they wait in a collective, nothing in the job moves, and who
// could end that does not make progress. It then says where everybody is, with the stacks of all ranks, and, if it is
// told to, that the job is to end. Supervisor -> HangWatch -> (flight recordings, /proc, signals to ranks). Looks cost
// next to nothing while the job moves. Nothing waits for a rank; naming the places in stacks may take 3 s, when the job
// hangs anyway. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/deadline.h"
#include "lockstep/launch/flight_recordings.h"
#include "lockstep/launch/hang_decision.h"
#include "lockstep/launch/hang_scout.h"

namespace lockstep::internal {

// Why a job that hangs is to end.
struct HangVerdict {
  std::string text;  // "did not come to barrier #4 of group world, in which ranks 0, 2 waited for 60 s"
  int blamed = -1;   // the rank that did not; -1: none in particular
};

struct HangReport {
  std::vector<std::string> lines = {};  // for the user
  std::optional<HangVerdict> verdict = {};
};

// Those of the user: LOCKSTEP_HANG_SECONDS and LOCKSTEP_HANG_CAP_SECONDS, or the defaults.
HangOptions hang_options(std::optional<Duration> end_after);

class HangWatch {
 public:
  // `recordings` and the clock are borrowed.
  HangWatch(const HangOptions& options, const FlightRecordings& recordings, const Clock& clock = steady_clock());

  // Of the ranks of one attempt; does nothing before next_look().
  HangReport look(const std::vector<WatchedRank>& ranks);
  Deadline next_look() const { return next_look_; }
  // Why the ranks hang, once that was told of; empty if they do not.
  const std::string& hang() const { return hang_; }

 private:
  HangReport look_at_ranks(const std::vector<WatchedRank>& ranks);
  HangReport look_at_stacks();
  HangSight see(const std::vector<WatchedRank>& ranks);

  const Clock& clock_;
  HangScout scout_;
  HangTimer timer_;
  HangSight told_;  // while stacks come in
  std::string hang_;
  Deadline next_look_;
};

}  // namespace lockstep::internal
