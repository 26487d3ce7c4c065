#include "lockstep/job/launch/job_monitor.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace lockstep::internal {

std::string_view to_string(JobState state) {
  constexpr std::array<std::string_view, kJobStates> kNames = {"gathering", "running", "restarting", "stopping",
                                                               "succeeded", "failed",  "stopped"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string_view to_string(FailureKind kind) {
  constexpr std::array<std::string_view, kFailureKinds> kNames = {"exit_code", "signal", "out_of_memory", "hang",
                                                                  "lost_host"};
  return kNames.at(static_cast<std::size_t>(kind));
}

FailureKind kind_of_failure(const Outcome& outcome) {
  if (!outcome.hang.empty()) return FailureKind::hang;
  const RankEnd* first = outcome.first_failure();
  // What ranks say after a host was lost is a consequence.
  if (first == nullptr || (!outcome.lost.empty() && first->failure.fault != Fault::own)) return FailureKind::lost_host;
  if (first->failure.out_of_memory.value_or(false)) return FailureKind::out_of_memory;
  return first->status.signal != 0 ? FailureKind::signal : FailureKind::exit_code;
}

bool WatchedJob::is_well(std::string& why) const {
  if (state == JobState::failed) {
    why = "the job has failed";
  } else if (!hang.empty()) {
    why = "the job hangs: " + hang;
  }
  return why.empty();
}

void JobMonitor::join(const std::string& job_id, const std::string& run_id, bool is_first) {
  const std::lock_guard lock(mutex_);
  status_.job_id = job_id;
  status_.run_id = run_id;
  const bool was_first = std::exchange(status_.is_first, is_first);
  if (!is_first) status_.state = JobState::running;
  // Else it hears of each change: its job may have begun already.
  if (is_first && !was_first) status_.state = JobState::gathering;
}

void JobMonitor::on_event(const JobEvent& event) {
  const std::lock_guard lock(mutex_);
  status_.job_id = event.job_id;
  status_.run_id = event.run_id;
  switch (event.kind) {
    case JobEvent::Kind::start: return begin_attempt(event);
    case JobEvent::Kind::restart:
      note_failure(event);
      if (event.outcome && event.outcome->failed()) ++status_.restarts;
      return begin_attempt(event);
    case JobEvent::Kind::loss:
      ++status_.hosts_lost;
      status_.state = JobState::restarting;
      return;
    case JobEvent::Kind::stop: status_.state = JobState::stopping; return;
    case JobEvent::Kind::end:
      note_failure(event);
      status_.hang.clear();
      status_.state = event.exit_code == 0     ? JobState::succeeded
                      : event.stop_signal != 0 ? JobState::stopped
                                               : JobState::failed;
      return;
  }
}

void JobMonitor::note_failure(const JobEvent& event) {
  if (event.outcome && event.outcome->failed()) {
    ++status_.failures[static_cast<std::size_t>(kind_of_failure(*event.outcome))];
  }
}

void JobMonitor::begin_attempt(const JobEvent& event) {
  for (const MonitoredRank& rank : status_.ranks) earlier_[rank.status.rank] = rank.status.numbers;
  status_.ranks.clear();
  for (const HostOfEvent& host : event.hosts) {
    for (int rank = host.first_rank; rank < host.first_rank + host.ranks; ++rank) {
      status_.ranks.push_back({.host = host.name, .status = {.rank = rank, .numbers = earlier_[rank]}});
      status_.ranks.back().status.numbers.values.clear();
    }
  }
  status_.state = JobState::running;
  status_.hang.clear();
  ++status_.attempts;
  status_.hosts = static_cast<int>(event.hosts.size());
  status_.world_size = event.world_size;
}

void JobMonitor::on_gathering(const std::vector<HostOfEvent>& hosts) {
  const std::lock_guard lock(mutex_);
  status_.state = JobState::gathering;
  status_.hang.clear();
  status_.hosts = static_cast<int>(hosts.size());
  status_.world_size = 0;
  for (const HostOfEvent& host : hosts) status_.world_size += host.ranks;
  std::erase_if(status_.ranks, [&](const MonitoredRank& rank) {
    if (std::ranges::find(hosts, rank.host, &HostOfEvent::name) != hosts.end()) return false;
    earlier_[rank.status.rank] = rank.status.numbers;
    return true;
  });
}

void JobMonitor::on_ranks(const std::string& host, const std::vector<RankStatus>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const RankStatus& rank : ranks) {
    const auto known = std::ranges::find_if(
        status_.ranks, [&](const MonitoredRank& each) { return each.status.rank == rank.rank && each.host == host; });
    if (known == status_.ranks.end()) continue;
    known->status = rank;
    if (const auto before = earlier_.find(rank.rank); before != earlier_.end()) {
      known->status.numbers.add_earlier(before->second);
    }
  }
}

void JobMonitor::on_hang(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (status_.hang != why) status_.hang = why;
}

WatchedJob JobMonitor::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace lockstep::internal
