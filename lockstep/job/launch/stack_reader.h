// Reads the stacks that ranks of this machine record (observe/stack_recorder.h): of all threads of a living rank, after
// it was asked for them, and of one that has crashed. launcher -> StackRequest -> signal -> rank -> shared memory.
// Nothing here waits for a rank. What ranks wrote is checked; what makes no sense is left out. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/observe/flight_memory.h"

namespace lockstep::internal {

// A place in the code of a program or library.
struct CodeAddress {
  std::string file = {};     // "/usr/lib/libc.so.6"; empty: code that is in no file
  std::uint64_t offset = 0;  // in it; without a file the address itself
  bool is_return = false;    // where a call returns to, which is behind the call

  auto operator<=>(const CodeAddress&) const = default;
};

struct ThreadStack {
  int thread = 0;
  bool is_main = false;
  std::string name = {};
  bool blocks_signals = false;
  std::string remark = {};  // why there are no frames
  std::vector<CodeAddress> frames = {};
};

struct CrashStack {
  int signal = 0;
  int sender = 0;             // the process that sent the signal; 0: a fault of the thread itself
  std::uint64_t address = 0;  // of a fault: that could not be used
  ThreadStack thread;
};

// The crash that a rank has recorded, if any.
std::optional<CrashStack> read_crash(const FlightMemory& memory);

// One round of asking a living process for the stacks of its threads.
class StackRequest {
 public:
  // Signals the threads of the process that records in the memory. Sends nothing to a process that does not have the
  // handler now, or has not mapped this memory (it would die of the signal, or be another one): then remark() says so.
  // `memory` is borrowed.
  explicit StackRequest(const FlightMemory& memory);

  // Whether all that were asked have answered.
  bool complete() const;
  // By thread, the main thread first; those that have not answered without frames.
  std::vector<ThreadStack> take() const;
  // Why there are no stacks; empty if there are.
  const std::string& remark() const { return remark_; }

 private:
  std::string reason_not_to_ask() const;
  void ask();

  const FlightMemory& memory_;
  int pid_ = 0;
  std::uint64_t round_ = 0;
  std::vector<int> asked_;
  std::vector<ThreadStack> threads_;  // all, without frames
  std::string remark_;
};

}  // namespace lockstep::internal
