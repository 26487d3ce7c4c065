#include "tools/report/epoch_metrics.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "tools/report/html.h"

namespace lockstep::tools {
namespace {

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

std::set<std::string> known_names(std::span<const RunRecord> runs) {
  std::set<std::string> names;
  for (const RunRecord& run : runs) {
    for (const EpochLine& epoch : run.epochs) {
      for (const auto& [name, value] : epoch.metrics) {
        if (std::isfinite(value)) names.insert(name);
      }
    }
  }
  return names;
}

}  // namespace

MetricKind kind_of_metric(std::string_view name) {
  if (has(name, "loss")) return MetricKind::loss;
  if (has(name, "accuracy") || name == "acc" || name.ends_with("_acc")) return MetricKind::accuracy;
  if (name.ends_with("_per_second")) return MetricKind::throughput;
  return name.ends_with("_share") ? MetricKind::share : MetricKind::other;
}

std::string metric_value_text(double value, MetricKind kind) {
  return kind == MetricKind::share ? percent_text(value) : number_text(value);
}

std::vector<MetricGroup> metric_groups(std::span<const RunRecord> runs) {
  MetricGroup loss{"Loss", MetricKind::loss}, accuracy{"Accuracy", MetricKind::accuracy},
      throughput{"Throughput, per second", MetricKind::throughput};
  std::vector<MetricGroup> others;
  for (const std::string& name : known_names(runs)) {
    switch (const MetricKind kind = kind_of_metric(name); kind) {
      case MetricKind::loss: loss.names.push_back(name); break;
      case MetricKind::accuracy: accuracy.names.push_back(name); break;
      case MetricKind::throughput: throughput.names.push_back(name); break;
      case MetricKind::share: others.push_back({name + ", %", kind, {name}}); break;
      case MetricKind::other: others.push_back({name, kind, {name}}); break;
    }
  }
  std::vector<MetricGroup> groups;
  for (MetricGroup& group : std::vector<MetricGroup>{loss, accuracy, throughput}) {
    if (!group.names.empty()) groups.push_back(std::move(group));
  }
  groups.insert(groups.end(), others.begin(), others.end());
  return groups;
}

std::vector<std::string> metric_names(std::span<const RunRecord> runs) {
  std::vector<std::string> names;
  for (const MetricGroup& group : metric_groups(runs))
    names.insert(names.end(), group.names.begin(), group.names.end());
  return names;
}

double metric_of(const EpochLine& epoch, const std::string& name) {
  const auto found = std::ranges::lower_bound(epoch.metrics, name, {}, &std::pair<std::string, double>::first);
  return found != epoch.metrics.end() && found->first == name ? found->second : kUnknown;
}

BestEpoch best_of(const RunRecord& run, const std::string& name, MetricKind kind) {
  BestEpoch best;
  for (const EpochLine& epoch : run.epochs) {
    const double value = metric_of(epoch, name);
    if (!std::isfinite(value)) continue;
    const bool is_better = kind == MetricKind::loss ? value < best.value : value > best.value;
    if (best.epoch == 0 || is_better) best = {value, epoch.epoch + 1};
  }
  return best;
}

}  // namespace lockstep::tools
