// What /proc says of processes on this machine: the state of threads, and what a process and those that it started have
// done so far. A process that has ended has none. Nothing blocks; any thread may call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/launch/tcp_bytes.h"

namespace lockstep::internal {

struct ThreadStatus {
  std::string name = {};
  char state = '?';          // R running, S sleeping, D waiting for a device, T stopped, t traced, Z ended
  std::uint64_t caught = 0;  // signals; bit 0 is signal 1
  std::uint64_t blocked = 0;
  std::uint64_t ignored = 0;
};

// By SIGSTOP or the like, or by a debugger. `state`: as ThreadStatus has it.
inline bool is_stopped(char state) { return state == 'T' || state == 't'; }

std::vector<int> threads_of(int pid);
// Those that it has not waited for.
std::vector<int> children_of(int pid);
// The processes that it has started, and those that these have, as far as a shell did so. None if it is no shell.
std::vector<int> run_by_shell(int pid);
std::optional<ThreadStatus> read_thread_status(int pid, int thread);

// Of those of these process groups in which a process lives: the signals that all its processes ignore.
std::map<int, std::uint64_t> ignored_by_groups(const std::set<int>& groups);

// Of a process and all that it started, as far as they live or it has waited for them.
struct ProcessActivity {
  char state = '?';  // of one process of them
  Duration cpu{};
  std::uint64_t bytes = 0;  // read and written, by files and pipes, and by TCP connections as `tcp` has them
};

// The state is that of `main_pid` if it is among them, else of `pid`: a shell may have started the program.
std::optional<ProcessActivity> read_activity(int pid, int main_pid, const TcpBytes& tcp);

// What a process and its children have done in the last while.
class ActivityWindow {
 public:
  void add(TimePoint now, const ProcessActivity& seen, Duration window);
  // REQUIRES of the others: something was added.
  char state() const { return samples_.back().seen.state; }
  // Seconds a second.
  double cpu() const;
  // More than threads do that only look around. Not known before the second sample: false.
  bool is_progress() const;

 private:
  struct Sample {
    TimePoint at;
    ProcessActivity seen;
  };
  double per_second(double value) const;

  std::deque<Sample> samples_;
};

}  // namespace lockstep::internal
