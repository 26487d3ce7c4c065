// What the agents of a job say to each other of its ranks; a part of agent_message.h. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lockstep/job/launch/hang_text.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_status.h"

namespace lockstep::internal {

inline constexpr std::size_t kMostGroupsTold = 64;  // of a rank

struct RankEnded {
  int generation = 0;
  RankEnd end = {};
};
// How a rank crashed, in lines. After its RankEnded.
struct RankStack {
  int generation = 0;
  int rank = 0;
  std::deque<std::string> lines = {};
};
// What a rank does while nothing moves on its host; after those of all its ranks comes one HostStands.
struct RankStands {
  int generation = 0;
  std::int64_t now_ns = 0;  // of the host's clock, as the times of the rank's records
  RankSight sight = {};
};
// The ranks of the host do not move; or do, after that. Times are of the host's clock; the same event has the same one.
struct HostStands {
  int generation = 0;
  bool is_still = false;
  std::int64_t now_ns = 0;
  std::int64_t last_event_ns = 0;  // the last time that something moved
};
// How a rank fares, each second, if the first host has asked for it.
struct RankCounts {
  int generation = 0;
  RankStatus status = {};
};
// From the first host: print the stacks of your ranks, those of `first` before the others'.
struct TellStacks {
  std::vector<int> first = {};
};
// Of the attempt, all ranks of this host have ended, and all that they printed has been sent.
struct HostDone {
  int generation = 0;
  int master_port = 0;  // a free one for the next attempt
};

}  // namespace lockstep::internal
