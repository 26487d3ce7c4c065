#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>

#include "lockstep/base/format.h"
#include "tools/report/charts.h"
#include "tools/report/html.h"
#include "tools/report/page.h"
#include "tools/report/step_summary.h"

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostShownRanks = 32, kMostLines = 8, kMostColumns = 60, kMostStepPoints = 200;

// By StepPart, and the rest of a step.
const std::vector<std::string> kPartNames = {"data",      "forward", "backward",      "forward and backward",
                                             "optimizer", "waiting", "communicating", "other"};

std::string rank_text(int rank) { return fmt::format("rank {}", rank); }

const RankTimes* times_of(const StepsLine& line, int rank) {
  const auto found = std::ranges::lower_bound(line.ranks, rank, {}, &RankTimes::rank);
  return found != line.ranks.end() && found->rank == rank ? &*found : nullptr;
}

double seconds_of(const StepsLine& line, int rank, StepPart part) {
  const RankTimes* times = times_of(line, rank);
  return times == nullptr ? kUnknown : times->of(part);
}

// Of many ranks, those that are latest, or take longest where lateness is not known.
std::vector<RankSummary> shown_ranks(std::vector<RankSummary> ranks) {
  const auto weight = [](const RankSummary& rank) {
    const double late = rank.mean.of(StepPart::late), step = rank.mean.of(StepPart::step);
    return std::pair(std::isfinite(late) ? late : -1.0, std::isfinite(step) ? step : -1.0);
  };
  if (ranks.size() <= kMostShownRanks) return ranks;
  std::ranges::stable_sort(ranks, std::ranges::greater(), weight);
  ranks.resize(kMostShownRanks);
  std::ranges::sort(ranks, {}, [](const RankSummary& rank) { return rank.mean.rank; });
  return ranks;
}

StepSeconds parts_of(const RankTimes& times) {
  StepSeconds parts = times.seconds;
  parts[kStepParts] = other_seconds(times);
  return parts;
}

// Numbers of the parts that any rank knows, in their order.
std::vector<std::size_t> known_parts(const std::vector<RankSummary>& ranks) {
  std::vector<std::size_t> parts;
  for (std::size_t part = 0; part <= kStepParts; ++part) {
    const auto is_known = [part](const RankSummary& rank) { return std::isfinite(parts_of(rank.mean)[part]); };
    if (std::ranges::any_of(ranks, is_known)) parts.push_back(part);
  }
  return parts;
}

std::string bars_of(const std::vector<RankSummary>& ranks) {
  BarChart chart{.title = "Mean time of a step by rank", .x_label = "ms"};
  const std::vector<std::size_t> parts = known_parts(ranks);
  for (const std::size_t part : parts) {
    chart.parts.push_back(kPartNames[part]);
    chart.colors.push_back(part);
  }
  for (const RankSummary& rank : ranks) {
    ChartRow row{.name = rank_text(rank.mean.rank)};
    for (const std::size_t part : parts) row.values.push_back(parts_of(rank.mean)[part] * 1000);
    chart.rows.push_back(std::move(row));
  }
  return html_of(chart);
}

std::string rank_table(const std::vector<RankSummary>& ranks) {
  HtmlTable table{.caption = "Means over the run, in ms per step; hidden: communication hidden behind backward",
                  .head = {"rank", "step"}};
  const std::vector<std::size_t> parts = known_parts(ranks);
  for (const std::size_t part : parts) table.head.push_back(kPartNames[part]);
  for (const char* column : {"hidden", "late", "latest", "at step", "straggler", "steps"}) {
    table.head.emplace_back(column);
  }
  for (const RankSummary& rank : ranks) {
    const RankTimes& mean = rank.mean;
    std::vector<std::string> row{std::to_string(mean.rank), milliseconds_text(mean.of(StepPart::step))};
    for (const std::size_t part : parts) row.push_back(milliseconds_text(parts_of(mean)[part]));
    for (const double seconds : {mean.of(StepPart::hidden), mean.of(StepPart::late), rank.most_late}) {
      row.push_back(milliseconds_text(seconds));
    }
    row.push_back(std::isfinite(rank.most_late) ? std::to_string(rank.most_late_step) : milliseconds_text(kUnknown));
    row.push_back(count_text(rank.lines_as_straggler, "time"));
    row.push_back(std::to_string(rank.steps));
    table.rows.push_back(std::move(row));
  }
  return html_of(table);
}

// A line for each rank, or of many ranks the fastest, the median and the slowest.
LineChart step_times(const std::vector<StepsLine>& lines, const std::vector<RankSummary>& ranks) {
  LineChart chart{.title = "Time of a step, ms", .x_label = "step", .from_zero = true};
  if (ranks.size() <= kMostLines) {
    for (const RankSummary& rank : ranks) {
      ChartSeries series{.name = rank_text(rank.mean.rank), .color = chart.series.size(), .dash = chart.series.size()};
      for (const StepsLine& line : lines) {
        series.points.push_back(
            {static_cast<double>(line.step), seconds_of(line, rank.mean.rank, StepPart::step) * 1000});
      }
      chart.series.push_back(std::move(series));
    }
    return chart;
  }
  chart.series = {{.name = "slowest rank", .color = 4, .dash = 1},
                  {.name = "median", .color = 0, .dash = 0},
                  {.name = "fastest rank", .color = 2, .dash = 2}};
  for (const StepsLine& line : lines) {
    std::vector<double> all;
    for (const RankTimes& times : line.ranks) {
      if (std::isfinite(times.of(StepPart::step))) all.push_back(times.of(StepPart::step) * 1000);
    }
    if (all.empty()) continue;
    std::ranges::sort(all);
    const auto x = static_cast<double>(line.step);
    chart.series[0].points.push_back({x, all.back()});
    chart.series[1].points.push_back({x, all[all.size() / 2]});
    chart.series[2].points.push_back({x, all.front()});
  }
  return chart;
}

std::string lateness(const std::vector<StepsLine>& lines, const std::vector<RankSummary>& ranks) {
  HeatMap map{.title = "Lateness by rank", .x_label = "steps", .unit = "ms late per step"};
  for (const StepsLine& line : lines) map.columns.push_back(steps_text(line));
  for (const RankSummary& rank : ranks) {
    ChartRow row{.name = rank_text(rank.mean.rank)};
    for (const StepsLine& line : lines) row.values.push_back(seconds_of(line, rank.mean.rank, StepPart::late) * 1000);
    map.rows.push_back(std::move(row));
  }
  return html_of(map);
}

// Whether any rank knows its time in one of these.
bool knows(const std::vector<RankSummary>& ranks, std::initializer_list<StepPart> parts) {
  return std::ranges::any_of(ranks, [&](const RankSummary& rank) {
    return std::ranges::any_of(parts, [&](StepPart part) { return std::isfinite(rank.mean.of(part)); });
  });
}

std::string steps_of(const std::vector<RunRecord>& runs, const RunRecord& run) {
  const std::vector<RankSummary> all = summary_of(run.steps), ranks = shown_ranks(all);
  std::string html = run_heading(runs, run);
  html += fmt::format("<div class=\"charts\">\n{}{}{}</div>\n", bars_of(ranks),
                      html_of(step_times(joined(run.steps, kMostStepPoints), all)),
                      lateness(joined(run.steps, kMostColumns), ranks));
  if (knows(all, {StepPart::late})) {
    const bool is_any = std::ranges::any_of(all, [](const RankSummary& rank) { return rank.most_late > 0; });
    if (!is_any) html += element("p", "none", "Lateness: no rank was late.");
  } else {
    html += element("p", "none", "Left out: lateness by rank; no rank has \"late_s\".");
  }
  html += rank_table(ranks);
  if (ranks.size() < all.size()) {
    html += element("p", "none", fmt::format("The {} latest of {} ranks; --csv writes all.", ranks.size(), all.size()));
  }
  return html;
}

std::string hidden_chart(const std::vector<RunRecord>& runs) {
  LineChart chart{.title = "Communication hidden behind backward, % of all communication", .x_label = "step"};
  chart.from_zero = true;
  std::vector<std::string> without;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (runs[run].steps.empty()) continue;
    if (!std::isfinite(hidden_share(runs[run].steps))) {
      without.push_back(runs[run].name);
      continue;
    }
    ChartSeries series{.name = runs[run].name, .color = run, .dash = run};
    for (const StepsLine& line : joined(runs[run].steps, kMostStepPoints)) {
      series.points.push_back({static_cast<double>(line.step), 100 * hidden_share(line)});
    }
    chart.series.push_back(std::move(series));
  }
  return html_of(chart) + left_out(runs, without, "hidden communication; no rank has communicated or measured it.");
}

}  // namespace

std::string steps_section(const std::vector<RunRecord>& runs) {
  std::string html = "<section>\n";
  html += element("h2", "", "Time of a step by rank");
  std::vector<std::string> without;
  for (const RunRecord& run : runs) {
    if (run.steps.empty()) {
      without.push_back(run.name);
    } else {
      html += steps_of(runs, run);
    }
  }
  if (without.size() < runs.size()) html += element("h3", "", "Hidden communication") + hidden_chart(runs);
  html += left_out(runs, without,
                   "time of a step, lateness and hidden communication; metrics.jsonl has no line of kind \"steps\".");
  return html + "</section>\n";
}

}  // namespace lockstep::tools
