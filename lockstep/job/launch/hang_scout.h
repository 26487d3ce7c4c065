// A HangScout looks at the ranks of this machine for signs of a hang: since when none has begun an operation, where
// each of them is then, what it does, and, once it is asked, its stacks. (flight recordings, /proc, signals to ranks)
// -> HangScout -> RankSight. Looks cost next to nothing while the ranks move. Nothing waits for a rank; naming the
// places in stacks may take 3 s. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/flight_recordings.h"
#include "lockstep/job/launch/hang_text.h"
#include "lockstep/job/launch/process_status.h"
#include "lockstep/job/launch/stack_reader.h"
#include "lockstep/job/launch/watched_ranks.h"

namespace lockstep::internal {

class HangScout {
 public:
  // Recordings and the clock are borrowed. `tell_after`: for how long nothing moves before that is told of.
  HangScout(Duration tell_after, const FlightRecordings& recordings, const Clock& clock);

  // From one look to the next.
  Duration interval() const;
  // Whether the ranks have not moved for long enough to look at them; then sights() has those that live.
  bool look(const std::vector<WatchedRank>& ranks);
  // What the ranks of sights() do; what they have done since the first call tells who makes progress.
  void measure();
  const std::vector<RankSight>& sights() const { return sights_; }
  TimePoint last_event() const { return last_event_; }
  int world_size() const { return world_size_; }

  // Stacks come in when all have answered, or after a second. Those of `first` are asked for before the others'.
  void ask_for_stacks(const std::vector<int>& first);
  bool awaits_stacks() const { return !requests_.empty(); }
  bool has_stacks() const;
  // Puts what has come into the ranks.
  void take_stacks(std::vector<RankSight>& ranks);

 private:
  bool has_moved(const std::vector<WatchedRank>& ranks);

  const FlightRecordings& recordings_;
  const Clock& clock_;
  const Duration interval_;
  const Duration quiet_;   // before which recordings are not read
  const Duration window_;  // in which progress is measured
  TimePoint last_event_;
  std::uint64_t counters_ = 0;
  int world_size_ = 0;
  std::map<int, int> pids_;  // of living ranks
  std::map<int, ActivityWindow> activities_;
  std::vector<RankSight> sights_;
  std::map<int, StackRequest> requests_;
  Deadline stacks_until_ = Deadline::never();
};

}  // namespace lockstep::internal
