// Summaries of the "steps" lines of a run: means by rank, weighted by steps. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/run_record.h"

namespace lockstep::tools {

struct RankSummary {
  RankTimes mean = {};
  std::int64_t steps = 0;  // of the lines that have this rank
  std::size_t lines_as_straggler = 0;
  double most_late = kUnknown;      // the highest mean lateness of a line, in seconds
  std::int64_t most_late_step = 0;  // the last step of that line
};
// By rank.
std::vector<RankSummary> summary_of(const std::vector<StepsLine>& lines);

// A step's time outside its known parts. Never less than 0; kUnknown if the step's time is.
double other_seconds(const RankTimes& times);

// Of the time of all ranks' communication, the share that backward has hidden; kUnknown if there was none.
double hidden_share(const StepsLine& line);
double hidden_share(const std::vector<StepsLine>& lines);

// At most `most` lines, each the mean of neighbours. REQUIRES: most > 0.
std::vector<StepsLine> joined(const std::vector<StepsLine>& lines, std::size_t most);

// "100", or "51 to 100" of a line that stands for several steps.
std::string steps_text(const StepsLine& line);

}  // namespace lockstep::tools
