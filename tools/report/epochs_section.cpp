#include <algorithm>
#include <cmath>
#include <span>

#include "lockstep/base/format.h"
#include "tools/report/charts.h"
#include "tools/report/epoch_metrics.h"
#include "tools/report/html.h"
#include "tools/report/page.h"

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostCharts = 24, kMostEpochRows = 60, kMostMetricColumns = 12;

double scale_of(MetricKind kind) { return kind == MetricKind::share ? 100 : 1; }

// Colours distinguish runs, and dashes metrics; of one run, colours distinguish metrics too.
LineChart chart_of(const std::vector<RunRecord>& runs, const MetricGroup& group) {
  LineChart chart{.title = group.title, .x_label = "epoch"};
  chart.from_zero = group.kind == MetricKind::throughput || group.kind == MetricKind::share;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    for (std::size_t name = 0; name < group.names.size(); ++name) {
      ChartSeries series{.name = group.names[name], .color = runs.size() == 1 ? name : run, .dash = name};
      if (runs.size() > 1) series.name = runs[run].name + ": " + series.name;
      bool is_known = false;
      for (const EpochLine& epoch : runs[run].epochs) {
        const double value = metric_of(epoch, group.names[name]) * scale_of(group.kind);
        is_known = is_known || std::isfinite(value);
        series.points.push_back({static_cast<double>(epoch.epoch + 1), value});
      }
      if (is_known) chart.series.push_back(std::move(series));
    }
  }
  return chart;
}

// Of many epochs, rows at even distances, and the last.
std::string table_of(const RunRecord& run, std::vector<std::string> names) {
  const std::size_t count = names.size();
  if (count > kMostMetricColumns) names.resize(kMostMetricColumns);
  HtmlTable table{.caption = "By epoch", .head = {"epoch"}, .text_columns = 0};
  table.head.insert(table.head.end(), names.begin(), names.end());
  table.head.emplace_back("ranks");
  const std::size_t each = (run.epochs.size() + kMostEpochRows - 1) / kMostEpochRows;
  for (std::size_t i = 0; i < run.epochs.size(); ++i) {
    const EpochLine& epoch = run.epochs[i];
    if ((run.epochs.size() - 1 - i) % each != 0) continue;
    std::vector<std::string> row{std::to_string(epoch.epoch + 1)};
    for (const std::string& name : names) {
      row.push_back(metric_value_text(metric_of(epoch, name), kind_of_metric(name)));
    }
    row.push_back(epoch.world_size ? std::to_string(*epoch.world_size) : number_text(kUnknown));
    table.rows.push_back(std::move(row));
  }
  std::string html = html_of(table);
  if (each > 1) {
    html += element("p", "none", fmt::format("Every {}th of {} epochs; --csv writes all.", each, run.epochs.size()));
  }
  if (count > names.size()) {
    html += element("p", "none", fmt::format("--csv writes {} more metrics.", count - names.size()));
  }
  return html;
}

bool has_metric(const RunRecord& run, const MetricGroup& group) {
  return std::ranges::any_of(group.names,
                             [&](const std::string& name) { return best_of(run, name, group.kind).epoch != 0; });
}

std::string charts_of(const std::vector<RunRecord>& runs, const std::vector<MetricGroup>& groups) {
  std::string charts, notes;
  for (std::size_t i = 0; i < std::min(groups.size(), kMostCharts); ++i) {
    std::vector<std::string> without;
    for (const RunRecord& run : runs) {
      if (!run.epochs.empty() && !has_metric(run, groups[i])) without.push_back(run.name);
    }
    charts += html_of(chart_of(runs, groups[i]));
    notes += left_out(runs, without, fmt::format("no epoch has {}.", fmt::join(groups[i].names, " or ")));
  }
  if (groups.size() > kMostCharts) {
    notes += element("p", "none", fmt::format("{} more metrics have no chart.", groups.size() - kMostCharts));
  }
  return charts.empty() ? notes : fmt::format("<div class=\"charts\">\n{}</div>\n{}", charts, notes);
}

// Metrics that every training is expected to log.
std::string missing_kinds(const std::vector<RunRecord>& runs, const std::vector<MetricGroup>& groups) {
  std::string html;
  const auto note = [&](MetricKind kind, const char* what, const char* example) {
    if (std::ranges::find(groups, kind, &MetricGroup::kind) != groups.end()) return;
    std::vector<std::string> names;
    for (const RunRecord& run : runs) {
      if (!run.epochs.empty()) names.push_back(run.name);
    }
    html += left_out(runs, names, fmt::format("{}; no epoch has a metric for it, such as {}.", what, example));
  };
  note(MetricKind::loss, "loss", "train_loss");
  note(MetricKind::accuracy, "accuracy", "val_accuracy");
  note(MetricKind::throughput, "throughput", "samples_per_second");
  return html;
}

}  // namespace

std::string epochs_section(const std::vector<RunRecord>& runs) {
  const std::vector<MetricGroup> groups = metric_groups(runs);
  std::string html = "<section>\n";
  html += element("h2", "", "Loss, accuracy and throughput");
  html += charts_of(runs, groups) + missing_kinds(runs, groups);
  std::vector<std::string> without;
  for (const RunRecord& run : runs) {
    if (run.epochs.empty()) {
      without.push_back(run.name);
      continue;
    }
    html += run_heading(runs, run) + table_of(run, metric_names(std::span(&run, 1)));
  }
  html += left_out(runs, without, "metrics.jsonl has no line of an epoch; TrainingRun::log_metrics() writes them.");
  return html + "</section>\n";
}

}  // namespace lockstep::tools
