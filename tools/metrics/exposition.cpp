#include "tools/metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tools {

using namespace internal;

namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

constexpr double kNanosecond = 1e-9;

class Page {
 public:
  // All metrics have these labels.
  explicit Page(Labels common) : common_(std::move(common)) {}

  void counter(const std::string& name, const std::string& help) {
    families_.push_back({.name = name, .help = help, .type = prometheus::MetricType::Counter, .metric = {}});
  }
  void gauge(const std::string& name, const std::string& help) {
    families_.push_back({.name = name, .help = help, .type = prometheus::MetricType::Gauge, .metric = {}});
  }
  // Of the family that was begun last.
  void add(double value, Labels labels = {}) {
    prometheus::MetricFamily& family = families_.back();
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    metric.label = common_;
    for (auto& label : labels) metric.label.push_back(std::move(label));
    (family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  std::string text() {
    std::erase_if(families_, [](const prometheus::MetricFamily& family) { return family.metric.empty(); });
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  const Labels common_;
  std::vector<prometheus::MetricFamily> families_;
};

Labels labels_of(const MonitoredRank& rank) {
  return {{"rank", std::to_string(rank.status.rank)}, {"host", rank.host}};
}

Labels with(Labels labels, std::string name, std::string_view value) {
  labels.push_back({std::move(name), std::string(value)});
  return labels;
}

void add_job(Page& page, const WatchedJob& status, const JobLabels& labels) {
  page.gauge("lockstep_job_info", "The job, with the version of Lockstep and the program it runs; always 1.");
  page.add(1, {{"version", labels.version}, {"program", labels.program}});
  page.gauge("lockstep_job_start_time_seconds", "Unix time at which the launcher started.");
  page.add(labels.start_seconds);
  page.gauge("lockstep_job_state", "1 for the current state of the job, 0 for all others.");
  for (int i = 0; i < kJobStates; ++i) {
    const auto state = static_cast<JobState>(i);
    page.add(state == status.state ? 1 : 0, {{"state", std::string(to_string(state))}});
  }
  page.gauge("lockstep_job_hanging", "1 while ranks wait for each other without progress, else 0.");
  page.add(status.hang.empty() ? 0 : 1);
  page.gauge("lockstep_hosts", "Hosts of the current or last attempt; while the job gathers, hosts that have joined.");
  page.add(status.hosts);
  page.gauge("lockstep_world_size", "Ranks of the hosts of the current or last attempt.");
  page.add(status.world_size);
  page.counter("lockstep_attempts_total", "Number of times that the ranks of the job were started.");
  page.add(status.attempts);
  page.counter("lockstep_restarts_total", "Attempts that followed a failure.");
  page.add(status.restarts);
  page.counter("lockstep_failures_total", "Failed attempts, by cause.");
  for (int i = 0; i < kFailureKinds; ++i) {
    page.add(status.failures.at(static_cast<std::size_t>(i)),
             {{"kind", std::string(to_string(static_cast<FailureKind>(i)))}});
  }
  page.counter("lockstep_hosts_lost_total", "Hosts that were lost while their ranks ran.");
  page.add(status.hosts_lost);
}

void add_states(Page& page, const WatchedJob& status) {
  constexpr std::array<std::string_view, kRankStates> kNames = {"starting", "running", "succeeded", "failed"};
  page.gauge("lockstep_ranks", "Ranks of the attempt in each state.");
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const auto is_in = [i](const MonitoredRank& rank) { return static_cast<std::size_t>(rank.status.state) == i; };
    page.add(static_cast<double>(std::ranges::count_if(status.ranks, is_in)), {{"state", std::string(kNames.at(i))}});
  }
}

void add_counter(Page& page, const WatchedJob& status, std::uint64_t RankNumbers::*number, const std::string& name,
                 const std::string& help, double unit = 1) {
  page.counter(name, help);
  for (const MonitoredRank& rank : status.ranks) {
    page.add(static_cast<double>(rank.status.numbers.*number) * unit, labels_of(rank));
  }
}

void add_times(Page& page, const WatchedJob& status) {
  page.counter("lockstep_step_seconds_total",
               "Time of training steps by part; waiting for other ranks and communicating count in no other part.");
  for (const MonitoredRank& rank : status.ranks) {
    const RankNumbers& numbers = rank.status.numbers;
    const auto add = [&](std::string_view phase, std::uint64_t ns) {
      page.add(static_cast<double>(ns) * kNanosecond, with(labels_of(rank), "phase", phase));
    };
    for (int i = 0; i < kStepPhases; ++i) {
      add(to_string(static_cast<StepPhase>(i)), numbers.phase_ns.at(static_cast<std::size_t>(i)));
    }
    add("waiting", numbers.waiting_ns);
    add("communication", numbers.communicating_ns);
  }
  add_counter(page, status, &RankNumbers::hidden_ns, "lockstep_hidden_communication_seconds_total",
              "Communication that went on while the rank computed.", kNanosecond);
  page.gauge("lockstep_lateness_seconds",
             "How long after the first rank of its host a rank began its last collectives, on average.");
  for (const MonitoredRank& rank : status.ranks) {
    if (!rank.status.lateness_ns) continue;
    page.add(static_cast<double>(*rank.status.lateness_ns) * kNanosecond, labels_of(rank));
  }
}

void add_values(Page& page, const WatchedJob& status) {
  page.gauge("lockstep_value", "The last value that the program has reported under this name.");
  for (const MonitoredRank& rank : status.ranks) {
    for (const auto& [name, value] : rank.status.numbers.values) {
      page.add(value, with(labels_of(rank), "name", name));
    }
  }
}

void add_checkpoints(Page& page, const WatchedJob& status) {
  add_counter(page, status, &RankNumbers::checkpoints, "lockstep_checkpoints_total",
              "Checkpoints that were completed.");
  std::uint64_t newest = 0;
  for (const MonitoredRank& rank : status.ranks) newest = std::max(newest, rank.status.numbers.checkpoint_wall_ns);
  page.gauge("lockstep_last_checkpoint_timestamp_seconds", "Unix time at which the newest checkpoint was complete.");
  if (newest != 0) page.add(static_cast<double>(newest) * kNanosecond);
}

}  // namespace

std::string exposition_of(const WatchedJob& status, const JobLabels& labels) {
  if (!status.is_first) return "# The first host of this job reports all of its ranks.\n";
  Page page({{"job_id", status.job_id}, {"run_id", status.run_id}});
  add_job(page, status, labels);
  add_states(page, status);
  add_counter(page, status, &RankNumbers::steps, "lockstep_steps_total", "Training steps, of all wrapped models.");
  add_counter(page, status, &RankNumbers::samples, "lockstep_samples_total",
              "Samples of a Lockstep loader that a rank has trained on.");
  add_counter(page, status, &RankNumbers::operations, "lockstep_operations_total",
              "Collectives and messages that a rank has begun.");
  add_times(page, status);
  add_values(page, status);
  add_checkpoints(page, status);
  return page.text();
}

}  // namespace lockstep::tools
