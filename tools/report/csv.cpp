#include "tools/report/csv.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "lockstep/base/format.h"
#include "tools/report/epoch_metrics.h"

namespace lockstep::tools {
namespace {

std::vector<std::string> fixed_columns() {
  std::vector<std::string> columns{"run", "kind", "epoch", "step", "steps", "rank", "world_size"};
  columns.insert(columns.end(), kStepFields.begin(), kStepFields.end());
  columns.emplace_back("straggler");
  return columns;
}

std::string cell(std::string_view text) {
  const bool is_formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  const std::string whole = fmt::format("{}{}", is_formula ? "'" : "", text);
  if (whole.find_first_of(",\"\r\n") == std::string::npos) return whole;
  std::string quoted = "\"";
  for (const char c : whole) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string number(const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : ""; }

void append_row(std::string& csv, const std::vector<std::string>& cells) {
  csv += fmt::format("{}\n", fmt::join(cells, ","));
}

void append_epochs(std::string& csv, const RunRecord& run, const std::vector<std::string>& metrics) {
  for (const EpochLine& epoch : run.epochs) {
    std::vector<std::string> cells{
        cell(run.name), "epoch", std::to_string(epoch.epoch), number(epoch.step), "", "", number(epoch.world_size)};
    cells.resize(cells.size() + kStepFields.size() + 1);
    for (const std::string& name : metrics) cells.push_back(number(metric_of(epoch, name)));
    append_row(csv, cells);
  }
}

void append_steps(std::string& csv, const RunRecord& run, std::size_t metrics) {
  for (const StepsLine& line : run.steps) {
    for (const RankTimes& times : line.ranks) {
      std::vector<std::string> cells{cell(run.name),
                                     "steps",
                                     "",
                                     std::to_string(line.step),
                                     std::to_string(line.steps),
                                     std::to_string(times.rank),
                                     number(line.world_size)};
      for (const double seconds : times.seconds) cells.push_back(number(seconds));
      cells.emplace_back(line.straggler == times.rank ? "1" : "0");
      cells.resize(cells.size() + metrics);
      append_row(csv, cells);
    }
  }
}

}  // namespace

std::string csv_of(const std::vector<RunRecord>& runs) {
  const std::vector<std::string> metrics = metric_names(runs), fixed = fixed_columns();
  std::vector<std::string> head = fixed;
  for (const std::string& name : metrics) {
    const bool is_taken = std::ranges::find(fixed, name) != fixed.end();
    head.push_back(cell(is_taken ? fmt::format("metric:{}", name) : name));
  }
  std::string csv;
  append_row(csv, head);
  for (const RunRecord& run : runs) {
    append_epochs(csv, run, metrics);
    append_steps(csv, run, metrics.size());
  }
  return csv;
}

}  // namespace lockstep::tools
