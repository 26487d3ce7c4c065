// Texts for the user about a job that hangs. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/launch/hang_decision.h"

namespace lockstep::internal {

// One rank, as the launcher finds it.
struct RankSight {
  RankPlace place = {};
  std::string host = {};  // empty: this one
  int pid = 0;
  bool has_recording = false;
  char state = '?';  // as /proc has it
  double cpu = 0;    // seconds of CPU a second, its children's included
  bool is_progress = false;
  std::vector<std::string> stacks = {};  // lines
};

std::vector<RankPlace> places_of(const std::vector<RankSight>& ranks);

struct HangSight {
  Blockage blockage = {};
  std::vector<RankSight> ranks = {};
  TimePoint now = {};
  TimePoint still_since = {};

  // A rank that can end the wait makes progress.
  bool is_progress() const;
};

// "ranks 0, 1 wait in barrier #4 (group world) for rank 2": without a verb in front, for lines of several kinds.
std::string describe_blockage(const HangSight& sight);
// A job hangs: who waits for whom, where each rank is, and the stacks.
std::vector<std::string> hang_lines(const HangSight& sight);
// The stacks alone: of ranks that have the same together, those of `first` at the beginning.
std::vector<std::string> stack_lines(const std::vector<RankSight>& ranks, const std::vector<int>& first);
// Why a job that hangs is ended.
std::string verdict_text(const HangSight& sight);
// Ranks wait for one that makes progress.
std::string straggler_line(const HangSight& sight);

}  // namespace lockstep::internal
