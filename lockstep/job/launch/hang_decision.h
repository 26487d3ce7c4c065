// Decides whether a job hangs: who waits in a collective for whom, and for how long nothing has moved. (flight
// recordings, /proc) -> HostWatch -> JobHang -> these. Pure: values in, values out, time is an argument.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/observe/flight_record.h"

namespace lockstep::internal {

// Where a rank is in a group: its last collective that has begun.
struct GroupPlace {
  std::string group = {};
  int size = 0;
  std::optional<FlightRecord> last = {};
  std::string text = {};  // describe() of it

  bool is_inside() const { return last && last->state == FlightState::running; }
  std::uint64_t sequence() const { return last ? last->sequence : 0; }
};

// Where a living rank of this machine is.
struct RankPlace {
  int rank = -1;
  bool is_stopped = false;  // by SIGSTOP, Ctrl-Z, a debugger
  std::vector<GroupPlace> groups = {};
  std::optional<FlightRecord> message = {};  // that it waits for
  std::string message_text = {};
};

enum class BlockageKind {
  none,
  absent,    // ranks wait for ranks that are in no collective
  circle,    // ranks wait for each other, in different collectives
  together,  // all are in the same collective
};

struct Blockage {
  BlockageKind kind = BlockageKind::none;
  std::string group = {};
  std::string collective = {};  // in which ranks wait, as describe() has it
  std::vector<int> waiting = {};
  std::vector<int> suspects = {};  // who can end it; never empty if there is a blockage

  // The rank that is to blame, or -1: in a circle, or where all are together, no rank is.
  int blamed() const;
};

// Only ranks that `places` has can be suspects: others have ended, which their peers notice, or are on other machines.
// Messages do not count as waiting.
Blockage find_blockage(const std::vector<RankPlace>& places, int world_size);

struct HangOptions {
  Duration tell_after = std::chrono::seconds(60);
  std::optional<Duration> end_after = {};        // nothing: a hang does not end the job
  Duration hard_cap = std::chrono::minutes(30);  // for ranks that make progress outside of collectives

  // A job does not end before it has been told of.
  Duration tells_after() const { return std::min(tell_after, end_after.value_or(tell_after)); }
};

// From one look at the ranks to the next.
Duration hang_interval(Duration tell_after);

enum class HangStep {
  none,
  note,  // ranks wait for one that makes progress
  tell,  // where everybody is
  end,   // the job
};

class HangTimer {
 public:
  // A longer time between two looks means that the launcher was stopped, or the machine suspended.
  static constexpr Duration kLongestPause = std::chrono::seconds(4);

  HangTimer(const HangOptions& options, TimePoint start);

  // What is to be done now. last_event: of the whole job; that a rank begins to wait is one. `progress`: a suspect
  // makes progress.
  HangStep look(TimePoint now, TimePoint last_event, BlockageKind kind, bool progress);
  // A hang was told of, and nothing has moved since.
  bool has_told() const { return told_; }
  // Since when nothing has moved.
  TimePoint still_since() const { return still_since_; }

 private:
  HangOptions options_;
  TimePoint last_look_;
  TimePoint earliest_;     // what was before does not count
  TimePoint still_since_;  // the last event
  TimePoint progress_at_;  // the last event or progress
  Duration next_tell_;
  Duration next_note_;
  bool told_ = false;
};

}  // namespace lockstep::internal
