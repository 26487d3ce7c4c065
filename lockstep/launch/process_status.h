// What /proc says of processes on this machine: the state of threads, and what a process and those that it started have
// done so far. Values that are read once; a process that has ended has none. Nothing blocks; any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"

namespace lockstep::internal {

struct ThreadStatus {
  std::string name = {};
  char state = '?';          // R running, S sleeping, D waiting for a device, T stopped, t traced, Z ended
  std::uint64_t caught = 0;  // signals; bit 0 is signal 1
  std::uint64_t blocked = 0;
};

std::vector<int> threads_of(int pid);
std::optional<ThreadStatus> read_thread_status(int pid, int thread);

// Of a process and all that it started, as far as they live or it has waited for them.
struct ProcessActivity {
  char state = '?';  // of the process itself
  Duration cpu{};
  std::uint64_t bytes = 0;  // read and written, by files and pipes
};

std::optional<ProcessActivity> read_activity(int pid);

}  // namespace lockstep::internal
