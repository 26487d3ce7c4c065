#include "tools/report/step_summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

// Sums of seconds times steps, each part over the steps in which it is known.
struct Sums {
  std::array<double, kStepFields.size()> seconds{}, steps{};

  void add(const RankTimes& times, std::int64_t count) {
    for (std::size_t part = 0; part < kStepFields.size(); ++part) {
      if (!std::isfinite(times.seconds[part])) continue;
      seconds[part] += times.seconds[part] * static_cast<double>(count);
      steps[part] += static_cast<double>(count);
    }
  }
  StepSeconds means() const {
    StepSeconds means = no_seconds();
    for (std::size_t part = 0; part < kStepFields.size(); ++part) {
      if (steps[part] > 0) means[part] = seconds[part] / steps[part];
    }
    return means;
  }
};

StepsLine join(std::span<const StepsLine> lines) {
  StepsLine whole{.step = lines.back().step, .steps = 0, .world_size = lines.back().world_size};
  std::map<int, Sums> sums;
  for (const StepsLine& line : lines) {
    whole.steps += line.steps;
    for (const RankTimes& times : line.ranks) sums[times.rank].add(times, line.steps);
  }
  for (const auto& [rank, of_rank] : sums) whole.ranks.push_back({rank, of_rank.means()});
  return whole;
}

struct Communication {
  double hidden = 0, shown = 0;

  void add(const StepsLine& line) {
    for (const RankTimes& times : line.ranks) {
      const double steps = static_cast<double>(line.steps);
      if (const double seconds = times.of(StepPart::hidden); std::isfinite(seconds)) hidden += seconds * steps;
      if (const double seconds = times.of(StepPart::communicating); std::isfinite(seconds)) shown += seconds * steps;
    }
  }
  double share() const { return hidden + shown > 0 ? hidden / (hidden + shown) : kUnknown; }
};

}  // namespace

std::vector<RankSummary> summary_of(const std::vector<StepsLine>& lines) {
  std::map<int, RankSummary> ranks;
  std::map<int, Sums> sums;
  for (const StepsLine& line : lines) {
    for (const RankTimes& times : line.ranks) {
      RankSummary& rank = ranks[times.rank];
      sums[times.rank].add(times, line.steps);
      rank.steps += line.steps;
      rank.lines_as_straggler += line.straggler == times.rank ? 1 : 0;
      const double late = times.of(StepPart::late);
      if (!std::isfinite(late) || late <= rank.most_late) continue;
      rank.most_late = late;
      rank.most_late_step = line.step;
    }
  }
  std::vector<RankSummary> summaries;
  for (auto& [number, rank] : ranks) {
    rank.mean = {number, sums[number].means()};
    summaries.push_back(rank);
  }
  return summaries;
}

double other_seconds(const RankTimes& times) {
  double rest = times.of(StepPart::step);
  for (std::size_t part = 0; part < kStepParts; ++part) {
    if (std::isfinite(times.seconds[part])) rest -= times.seconds[part];
  }
  return std::isfinite(rest) ? std::max(rest, 0.0) : kUnknown;
}

double hidden_share(const StepsLine& line) { return hidden_share(std::vector<StepsLine>{line}); }

double hidden_share(const std::vector<StepsLine>& lines) {
  Communication communication;
  for (const StepsLine& line : lines) communication.add(line);
  return communication.share();
}

std::vector<StepsLine> joined(const std::vector<StepsLine>& lines, std::size_t most) {
  const std::size_t each = (lines.size() + most - 1) / most;
  if (each <= 1) return lines;
  std::vector<StepsLine> fewer;
  for (std::size_t begin = 0; begin < lines.size(); begin += each) {
    fewer.push_back(join(std::span(lines).subspan(begin, std::min(each, lines.size() - begin))));
  }
  return fewer;
}

std::string steps_text(const StepsLine& line) {
  if (line.steps <= 1) return std::to_string(line.step);
  return fmt::format("{} to {}", std::max<std::int64_t>(line.step - line.steps + 1, 1), line.step);
}

}  // namespace lockstep::tools
