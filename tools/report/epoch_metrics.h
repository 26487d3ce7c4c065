// The metrics that epochs have, and the charts that they belong to, by their names. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/run_record.h"

namespace lockstep::tools {

enum class MetricKind { loss, accuracy, throughput, share, other };

struct MetricGroup {
  std::string title = {};
  MetricKind kind = MetricKind::other;
  std::vector<std::string> names = {};
};
// "train_loss" and "val_loss" share a chart, and so do accuracies and what is counted per second; of all others each
// has its own. Metrics that no run knows a number of are left out.
std::vector<MetricGroup> metric_groups(std::span<const RunRecord> runs);
// All of them, in the order of the groups.
std::vector<std::string> metric_names(std::span<const RunRecord> runs);

// As tables show it: a share in percent, as in its chart.
std::string metric_value_text(double value, MetricKind kind);
MetricKind kind_of_metric(std::string_view name);

double metric_of(const EpochLine& epoch, const std::string& name);  // kUnknown if it has none

// The best of a run: the lowest loss, the highest of others. `epoch` is counted from 1; 0: there is none.
struct BestEpoch {
  double value = kUnknown;
  std::int64_t epoch = 0;
};
BestEpoch best_of(const RunRecord& run, const std::string& name, MetricKind kind);

}  // namespace lockstep::tools
