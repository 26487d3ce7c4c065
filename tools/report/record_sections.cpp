// The overview, and the sections without charts: failures and restarts, checkpoints, environment.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "lockstep/base/format.h"
#include "lockstep/job/inspect/finding.h"
#include "lockstep/job/launch/shell_quoted.h"
#include "tools/report/epoch_metrics.h"
#include "tools/report/html.h"
#include "tools/report/page.h"
#include "tools/report/step_summary.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr std::size_t kMostEvents = 100, kMostCheckpoints = 200, kMostVersions = 50;

std::string dash() { return number_text(kUnknown); }

// "4", or "4, then 3".
std::string ranks_text(const RunRecord& run) {
  std::vector<std::int64_t> sizes;
  const auto add = [&](const std::optional<std::int64_t>& size) {
    if (size && (sizes.empty() || sizes.back() != *size)) sizes.push_back(*size);
  };
  if (run.steps.empty()) {
    for (const EpochLine& epoch : run.epochs) add(epoch.world_size);
  } else {
    for (const StepsLine& line : run.steps) add(line.world_size);
  }
  if (sizes.empty()) return dash();
  if (sizes.size() > 5)
    return fmt::format("{} to {}, {} changes", std::ranges::min(sizes), std::ranges::max(sizes), sizes.size() - 1);
  return fmt::format("{}", fmt::join(sizes, ", then "));
}

std::string metric_text(const RunRecord& run, const std::string& name, MetricKind kind) {
  const BestEpoch best = best_of(run, name, kind);
  if (best.epoch == 0) return dash();
  const double last = metric_of(run.epochs.back(), name);
  const char* word = kind == MetricKind::loss ? "lowest" : "highest";
  return fmt::format("{} ({} {}, epoch {})", metric_value_text(last, kind), word, metric_value_text(best.value, kind),
                     best.epoch);
}

std::string step_text(const RunRecord& run) {
  double step = kUnknown;
  for (const RankSummary& rank : summary_of(run.steps)) step = std::fmax(step, rank.mean.of(StepPart::step));
  return std::isfinite(step) ? milliseconds_text(step) + " ms on the slowest rank" : dash();
}

// The rank that most lines name.
std::string straggler_text(const RunRecord& run) {
  const std::vector<RankSummary> ranks = summary_of(run.steps);
  const auto most = std::ranges::max_element(ranks, {}, &RankSummary::lines_as_straggler);
  if (most == ranks.end()) return dash();
  if (most->lines_as_straggler == 0) return "none";
  return fmt::format("rank {}, in {} of {}", most->mean.rank, most->lines_as_straggler,
                     count_text(run.steps.size(), "line"));
}

std::string steps_done(const RunRecord& run) {
  std::int64_t step = run.steps.empty() ? 0 : run.steps.back().step;
  if (!run.saves.empty()) step = std::max(step, run.saves.back().step);
  for (const FolderCheckpoint& each : run.checkpoints) {
    step = std::max(step, static_cast<std::int64_t>(std::min<std::uint64_t>(each.step.value_or(0), INT64_MAX)));
  }
  return step == 0 ? dash() : std::to_string(step);
}

using RowText = std::function<std::string(const RunRecord&)>;

void add_row(HtmlTable& table, const std::vector<RunRecord>& runs, const std::string& heading, const RowText& text) {
  std::vector<std::string> row{heading};
  for (const RunRecord& run : runs) row.push_back(text(run));
  if (std::ranges::any_of(row.begin() + 1, row.end(), [](const std::string& cell) { return cell != dash(); })) {
    table.rows.push_back(std::move(row));
  }
}

HtmlTable table_by_run(const std::vector<RunRecord>& runs) {
  HtmlTable table{.head = {"run"}, .text_columns = runs.size() + 1};
  for (const RunRecord& run : runs) table.head.push_back(run.name);
  return table;
}

// Rows of the numbers of starts, restarts and damaged lines.
std::string damage_of(const RunRecord& run) {
  if (run.damaged_count == 0) return "";
  std::string html = element(
      "p", "warn",
      fmt::format("{} of {} cannot be read and {} left out:", count_text(run.damaged_count, "line"),
                  (std::filesystem::path(run.path) / "metrics.jsonl").string(), run.damaged_count == 1 ? "is" : "are"));
  HtmlTable table{.head = {"line", "problem"}, .text_columns = 2};
  for (const DamagedLine& each : run.damaged) {
    table.rows.push_back({fmt::format("{}/metrics.jsonl:{}", run.name, each.line), each.what});
  }
  return html + html_of(table);
}

// Starts and restarts by line.
std::string events_of(const RunRecord& run) {
  std::map<std::size_t, std::vector<std::string>> events;
  for (const StartLine& start : run.starts) {
    const bool is_first = start.line == run.starts.front().line;
    events[start.line] = {start.started, is_first ? "started" : "started again",
                          start.host.empty() ? "" : fmt::format("on {}", start.host)};
  }
  for (const RestartLine& restart : run.restarts) {
    events[restart.line] = {restart.at,
                            restart.attempt.empty() ? "restart" : fmt::format("restart, attempt {}", restart.attempt),
                            restart.reason};
  }
  HtmlTable table{.head = {"when", "what", "why or where"}, .text_columns = 3};
  const std::size_t skipped = events.size() - std::min(events.size(), kMostEvents);
  auto event = std::next(events.begin(), static_cast<std::ptrdiff_t>(skipped));
  for (; event != events.end(); ++event) table.rows.push_back(event->second);
  std::string html = html_of(table);
  if (skipped != 0) html += element("p", "none", fmt::format("{} earlier events are not shown.", skipped));
  return html;
}

std::string file_name(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

// Those in the directory, and those that were saved and are no longer there.
std::string checkpoints_of(const RunRecord& run) {
  struct Row {
    std::int64_t step;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  std::map<std::string, double> seconds;
  for (const CheckpointLine& save : run.saves) seconds[file_name(save.path)] = save.seconds;
  std::set<std::string> present;
  for (const FolderCheckpoint& each : run.checkpoints) {
    present.insert(each.name);
    const auto took = seconds.find(each.name);
    const std::int64_t step =
        each.step ? static_cast<std::int64_t>(std::min<std::uint64_t>(*each.step, INT64_MAX)) : -1;
    rows.push_back({step,
                    {each.name, each.damage.empty() ? "whole" : fmt::format("DAMAGED: {}", each.damage), each.kind,
                     utc_text(each.modified_seconds), each.step ? std::to_string(*each.step) : dash(),
                     std::isfinite(each.bytes) ? bytes_text(each.bytes) : dash(),
                     number_text(took == seconds.end() ? kUnknown : took->second)}});
  }
  for (const CheckpointLine& save : run.saves) {
    const std::string name = file_name(save.path);
    if (present.contains(name)) continue;
    rows.push_back({save.step,
                    {name.empty() ? dash() : name, "removed", dash(), dash(), std::to_string(save.step), dash(),
                     number_text(save.seconds)}});
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &Row::step);
  HtmlTable table{.head = {"name", "state", "kind", "modified", "step", "size", "seconds to save"}, .text_columns = 4};
  for (std::size_t i = 0; i < std::min(rows.size(), kMostCheckpoints); ++i) table.rows.push_back(rows[i].cells);
  std::string html = html_of(table);
  if (rows.size() > kMostCheckpoints) {
    html += element("p", "none", fmt::format("{} older checkpoints are not shown.", rows.size() - kMostCheckpoints));
  }
  return html;
}

const StartLine* last_start(const RunRecord& run) { return run.starts.empty() ? nullptr : &run.starts.back(); }

std::string command_of(const StartLine& start) {
  std::vector<std::string> words;
  for (const std::string& word : start.command) words.push_back(shell_quoted(word));
  return fmt::format("{}", fmt::join(words, " "));
}

void add_settings(HtmlTable& table, const std::vector<RunRecord>& runs) {
  std::set<std::string> versions, settings;
  for (const RunRecord& run : runs) {
    if (const StartLine* start = last_start(run)) {
      for (const auto& [name, version] : start->versions) versions.insert(name);
    }
    for (const auto& [name, value] : run.settings) settings.insert(name);
  }
  while (versions.size() > kMostVersions) versions.erase(std::prev(versions.end()));
  while (settings.size() > kMostVersions) settings.erase(std::prev(settings.end()));
  for (const std::string& name : versions) {
    add_row(table, runs, fmt::format("version of {}", name), [&name](const RunRecord& run) {
      const StartLine* start = last_start(run);
      if (start == nullptr) return dash();
      const auto found = std::ranges::find(start->versions, name, &std::pair<std::string, std::string>::first);
      return found == start->versions.end() ? dash() : found->second;
    });
  }
  for (const std::string& name : settings) {
    add_row(table, runs, name, [&name](const RunRecord& run) {
      const auto found = run.settings.find(name);
      return found == run.settings.end() ? dash() : found->second;
    });
  }
}

}  // namespace

std::string overview_section(const std::vector<RunRecord>& runs) {
  HtmlTable table = table_by_run(runs);
  add_row(table, runs, "directory", [](const RunRecord& run) { return run.path; });
  add_row(table, runs, "epochs", [](const RunRecord& run) {
    return run.epochs.empty() ? dash() : std::to_string(run.epochs.back().epoch + 1);
  });
  add_row(table, runs, "steps", steps_done);
  add_row(table, runs, "ranks", ranks_text);
  std::size_t rows = 0;
  for (const MetricGroup& group : metric_groups(runs)) {
    if (group.kind == MetricKind::other) continue;
    for (const std::string& name : group.names) {
      if (++rows > 12) break;
      add_row(table, runs, name, [&](const RunRecord& run) { return metric_text(run, name, group.kind); });
    }
  }
  add_row(table, runs, "mean step", step_text);
  add_row(table, runs, "hidden communication",
          [](const RunRecord& run) { return percent_text(hidden_share(run.steps)); });
  add_row(table, runs, "straggler", straggler_text);
  add_row(table, runs, "restarts", [](const RunRecord& run) {
    return run.starts.empty() && run.restarts.empty() ? dash() : std::to_string(run.restarts.size());
  });
  add_row(table, runs, "checkpoints", [](const RunRecord& run) {
    return run.checkpoints.empty() ? dash() : std::to_string(run.checkpoints.size());
  });
  std::string html = "<section>\n";
  html += html_of(table);
  for (const RunRecord& run : runs) {
    if (run.damaged_count != 0) {
      html += element("p", "warn",
                      fmt::format("{}: {} of metrics.jsonl cannot be read; see below.", run.name,
                                  count_text(run.damaged_count, "line")));
    }
    if (run.replaced != 0) {
      html += element("p", "none",
                      fmt::format("{}: the run went back and repeated epochs or steps; {} from before {} left out.",
                                  run.name, count_text(run.replaced, "line"), run.replaced == 1 ? "is" : "are"));
    }
  }
  return html + "</section>\n";
}

std::string failures_section(const std::vector<RunRecord>& runs) {
  std::string html = "<section>\n";
  html += element("h2", "", "Failures and restarts");
  std::vector<std::string> without, without_restarts;
  for (const RunRecord& run : runs) {
    const bool has_events = !run.starts.empty() || !run.restarts.empty();
    if (!has_events) without.push_back(run.name);
    if (has_events && run.restarts.empty()) without_restarts.push_back(run.name);
    if (has_events || run.damaged_count != 0) html += run_heading(runs, run);
    if (has_events) html += events_of(run);
    html += damage_of(run);
  }
  if (!without_restarts.empty()) {
    html +=
        element("p", "none",
                runs.size() == 1 ? std::string("No restart was recorded.")
                                 : fmt::format("No restart of {} was recorded.", fmt::join(without_restarts, ", ")));
  }
  html += left_out(runs, without, "starts and restarts; metrics.jsonl has no line of kind \"run\" or \"restart\".");
  return html + "</section>\n";
}

std::string checkpoints_section(const std::vector<RunRecord>& runs) {
  std::string html = "<section>\n";
  html += element("h2", "", "Checkpoints");
  std::vector<std::string> without;
  for (const RunRecord& run : runs) {
    if (run.checkpoints.empty() && run.saves.empty()) {
      without.push_back(run.name);
    } else {
      html += run_heading(runs, run) + checkpoints_of(run);
    }
  }
  return html + left_out(runs, without, "there are no checkpoints in the directory, and none was recorded.") +
         "</section>\n";
}

std::string environment_section(const std::vector<RunRecord>& runs) {
  std::string html = "<section>\n";
  html += element("h2", "", "Environment and command line");
  HtmlTable table = table_by_run(runs);
  const auto of_start = [&](const std::string& heading, std::string StartLine::*member) {
    add_row(table, runs, heading, [member](const RunRecord& run) {
      const StartLine* start = last_start(run);
      return start == nullptr || (start->*member).empty() ? dash() : start->*member;
    });
  };
  of_start("started", &StartLine::started);
  of_start("host", &StartLine::host);
  of_start("threads", &StartLine::threads);
  add_settings(table, runs);
  if (!table.rows.empty()) html += html_of(table);
  std::vector<std::string> without;
  for (const RunRecord& run : runs) {
    const StartLine* start = last_start(run);
    if (start == nullptr) without.push_back(run.name);
    if (start != nullptr && !start->command.empty()) {
      html += run_heading(runs, run) + element("pre", "", command_of(*start));
    }
  }
  html += left_out(runs, without, "host, versions and command line; metrics.jsonl has no line of kind \"run\".");
  return html + "</section>\n";
}

}  // namespace lockstep::tools
