#include "lockstep/job/inspect/job_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/inspect/finding.h"

namespace lockstep::internal {
namespace {

constexpr double kStuckSeconds = 10;

const JobRank* find(const std::vector<Job>* jobs, const std::string& id, const JobRank& rank) {
  if (jobs == nullptr) return nullptr;
  for (const Job& job : *jobs) {
    if (job.id != id) continue;
    for (const JobRank& each : job.ranks) {
      if (each.pid == rank.pid && each.host == rank.host) return &each;
    }
  }
  return nullptr;
}

double percent(const std::string& id, const JobRank& rank, const TableOptions& options) {
  const JobRank* before = find(options.before, id, rank);
  const double used = rank.cpu_seconds - (before == nullptr ? 0 : before->cpu_seconds);
  const double time = before == nullptr ? rank.age_seconds : options.seconds;
  return time > 0 ? 100 * std::max(used, 0.0) / time : 0;
}

std::string rate_text(double steps, double operations) {
  if (steps > 0) return fmt::format("{:.3g} steps/s", steps);
  return operations > 0 ? fmt::format("{:.3g} calls/s", operations) : "-";
}

std::string doing_text(const JobRank& rank) {
  if (rank.doing.empty()) return "-";
  return rank.doing_seconds < kStuckSeconds ? rank.doing
                                            : fmt::format("{}, for {}", rank.doing, age_text(rank.doing_seconds));
}

bool has_several_hosts(const Job& job) {
  return std::ranges::any_of(job.ranks, [&](const JobRank& rank) { return rank.host != job.ranks.front().host; });
}

std::string name_of(const Job& job, const JobRank& rank) {
  return has_several_hosts(job) ? fmt::format("rank {} on {}", rank.rank, rank.host)
                                : fmt::format("rank {}", rank.rank);
}

// The rank that is furthest behind: where the job waits.
const JobRank& slowest(const Job& job) {
  static const JobRank kNone;
  return job.ranks.empty() ? kNone : *std::ranges::min_element(job.ranks, {}, &JobRank::operations);
}

char state_of(const Job& job) {
  for (const char state : {'T', 'D', 'Z'}) {
    if (std::ranges::any_of(job.ranks, [state](const JobRank& rank) { return rank.state == state; })) return state;
  }
  return std::ranges::any_of(job.ranks, [](const JobRank& rank) { return rank.state == 'R'; }) ? 'R' : 'S';
}

template <class Value>
Value sum(const Job& job, Value (*value)(const JobRank&)) {
  return std::accumulate(job.ranks.begin(), job.ranks.end(), Value{},
                         [value](Value before, const JobRank& rank) { return before + value(rank); });
}

constexpr const char* kLine = "{:<16} {:>8} {:>9} {:>7} {:>9} {} {:>6} {:>10} {:>14}  {}\n";

std::string job_line(const Job& job, const TableOptions& options) {
  double used = 0;
  for (const JobRank& rank : job.ranks) used += percent(job.id, rank, options);
  const JobRank& behind = slowest(job);
  const std::size_t here = job.ranks.size();
  const std::string ranks =
      static_cast<int>(here) == job.world_size ? std::to_string(here) : fmt::format("{} of {}", here, job.world_size);
  const auto resident = sum<double>(job, [](const JobRank& rank) { return static_cast<double>(rank.resident_bytes); });
  return fmt::format(kLine, job.id, job.launcher_pid, ranks, behind.attempt, age_text(behind.age_seconds),
                     state_of(job), fmt::format("{:.0f}", used), bytes_text(resident),
                     rate_text(behind.steps_per_second, behind.operations_per_second), behind.program);
}

std::string rank_line(const Job& job, const JobRank& rank, const TableOptions& options) {
  return fmt::format(kLine, "  " + name_of(job, rank), rank.pid, "", "", age_text(rank.age_seconds), rank.state,
                     fmt::format("{:.0f}", percent(job.id, rank, options)),
                     bytes_text(static_cast<double>(rank.resident_bytes)),
                     rate_text(rank.steps_per_second, rank.operations_per_second), doing_text(rank));
}

nlohmann::json json_of(const JobRank& rank) {
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"pid", rank.pid},
          {"state", std::string(1, rank.state)},
          {"program", rank.program},
          {"attempt", rank.attempt},
          {"cpu_seconds", rank.cpu_seconds},
          {"age_seconds", rank.age_seconds},
          {"resident_bytes", rank.resident_bytes},
          {"doing", rank.doing},
          {"doing_seconds", rank.doing_seconds},
          {"operations", rank.operations},
          {"operations_per_second", rank.operations_per_second},
          {"steps_per_second", rank.steps_per_second}};
}

}  // namespace

std::string age_text(double seconds) {
  const auto whole = static_cast<long>(std::max(seconds, 0.0));
  const long days = whole / 86400;
  const long hours = whole / 3600 % 24;
  const long minutes = whole / 60 % 60;
  if (days > 0) return fmt::format("{} d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string table_of(const std::vector<Job>& jobs, const TableOptions& options) {
  if (jobs.empty()) return "no jobs of this user are running on this machine\n";
  std::string text =
      fmt::format(kLine, "JOB", "LAUNCHER", "RANKS", "ATTEMPT", "TIME", "S", "CPU%", "MEMORY", "RATE", "PROGRAM");
  for (const Job& job : jobs) {
    text += job_line(job, options);
    const JobRank& behind = slowest(job);
    if (job.ranks.empty()) text += "  no ranks run now\n";
    if (!options.ranks && !job.ranks.empty()) {
      text +=
          fmt::format("  {} is {}\n", name_of(job, behind), behind.doing.empty() ? "not recorded" : doing_text(behind));
      continue;
    }
    for (const JobRank& rank : job.ranks) text += rank_line(job, rank, options);
  }
  return text;
}

std::string json_of(const std::vector<Job>& jobs) {
  nlohmann::json list = nlohmann::json::array();
  for (const Job& job : jobs) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const JobRank& rank : job.ranks) ranks.push_back(json_of(rank));
    list.push_back({{"job", job.id},
                    {"run_id", job.run_id},
                    {"launcher_pid", job.launcher_pid},
                    {"world_size", job.world_size},
                    {"ranks", std::move(ranks)}});
  }
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string ranks_as_json(const std::string& job_id, const std::vector<int>& pids) {
  constexpr std::size_t kMostTextBytes = 128;
  nlohmann::json list = nlohmann::json::array();
  for (JobRank& rank : look_at_ranks(job_id, pids)) {
    rank.program.resize(std::min(rank.program.size(), kMostTextBytes));
    rank.doing.resize(std::min(rank.doing.size(), kMostTextBytes));
    rank.host.clear();
    list.push_back(json_of(rank));
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<JobRank> ranks_of_json(const std::string& host, const std::string& text) {
  std::vector<JobRank> ranks;
  if (text.empty()) return ranks;
  try {
    for (const nlohmann::json& each : nlohmann::json::parse(text)) {
      const std::string state = each.at("state");
      ranks.push_back({.rank = each.at("rank"),
                       .host = printable(host),
                       .pid = each.at("pid"),
                       .state = printable(state).size() == 1 ? state[0] : '?',
                       .program = printable(each.at("program")),
                       .attempt = each.at("attempt"),
                       .cpu_seconds = each.at("cpu_seconds"),
                       .age_seconds = each.at("age_seconds"),
                       .resident_bytes = each.at("resident_bytes"),
                       .doing = printable(each.at("doing")),
                       .doing_seconds = each.at("doing_seconds"),
                       .operations = each.at("operations"),
                       .operations_per_second = each.at("operations_per_second"),
                       .steps_per_second = each.at("steps_per_second")});
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("the status of the ranks of host {} cannot be read: {}", printable(host), error.what()));
  }
  return ranks;
}

}  // namespace lockstep::internal
