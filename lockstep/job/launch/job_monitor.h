// A JobMonitor keeps what is known of a job while it runs, for those who watch it from outside. launcher -> JobMonitor
// -> WatchedJob -> metrics, health. The launcher tells it what happens; any thread reads a copy. Counters go on over
// restarts.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/job/launch/job_event.h"
#include "lockstep/job/launch/rank_status.h"

namespace lockstep::internal {

enum class JobState : std::uint8_t {
  gathering,  // hosts come
  running,
  restarting,  // an attempt has failed, and another one is to follow
  stopping,    // somebody has asked it to
  succeeded,
  failed,
  stopped,
};
inline constexpr int kJobStates = 7;
std::string_view to_string(JobState state);

enum class FailureKind : std::uint8_t { exit_code, signal, out_of_memory, hang, lost_host };
inline constexpr int kFailureKinds = 5;
std::string_view to_string(FailureKind kind);
// Of an attempt that failed.
FailureKind kind_of_failure(const Outcome& outcome);

struct MonitoredRank {
  std::string host = {};
  RankStatus status = {};
};

struct WatchedJob {
  std::string job_id = {};  // empty: not known yet
  std::string run_id = {};
  // False: another host is the first, and knows of all ranks. This one knows only how it fares itself.
  bool is_first = true;
  JobState state = JobState::gathering;
  std::string hang = {};  // why nothing moves; empty if it does
  int attempts = 0;
  int restarts = 0;
  int hosts = 0;  // of the attempt; while it gathers: that are there
  int hosts_lost = 0;
  int world_size = 0;                            // likewise
  std::array<int, kFailureKinds> failures = {};  // of attempts
  std::vector<MonitoredRank> ranks = {};         // of the attempt

  // Whether the job is as it should be; if not, `why` is one line.
  bool is_well(std::string& why) const;
};

class JobMonitor {
 public:
  // The agent of a job on several hosts belongs to it now.
  void join(const std::string& job_id, const std::string& run_id, bool is_first);
  void on_event(const JobEvent& event);
  // The job waits for more hosts; these are there.
  void on_gathering(const std::vector<HostOfEvent>& hosts);
  // What a host says of its ranks in this attempt.
  void on_ranks(const std::string& host, const std::vector<RankStatus>& ranks);
  // Why nothing moves; empty: it moves.
  void on_hang(const std::string& why);

  WatchedJob status() const;

 private:
  void begin_attempt(const JobEvent& event);
  void note_failure(const JobEvent& event);

  mutable std::mutex mutex_;
  WatchedJob status_;                   // protected by it
  std::map<int, RankNumbers> earlier_;  // likewise: by rank, of all attempts before this one
};

}  // namespace lockstep::internal
