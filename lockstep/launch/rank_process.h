// RankProcess is one rank of a process tree: its process, its output, and how it ended. Not thread-safe; never blocks.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "lockstep/base/clock.h"
#include "lockstep/launch/child_process.h"
#include "lockstep/launch/outcome.h"
#include "lockstep/launch/rank_output.h"

namespace lockstep::internal {

inline constexpr std::array kRankStreams{RankStream::standard_output, RankStream::standard_error};

class RankProcess {
 public:
  // Starts it; both streams go to the output unless that is null. `index`: among the ranks of the output. Errors as
  // ChildProcess::start().
  RankProcess(int rank, int index, Command command, RankOutput* output, const sigset_t& mask, int reaper_fd);

  bool is_running() const { return process_.has_value(); }
  // REQUIRES: is_running().
  const ChildProcess& process() const { return *process_; }
  // -1 once at its end.
  int stream_fd(RankStream stream) const { return streams_[static_cast<std::size_t>(stream)].get(); }
  const RankEnd& end() const { return end_; }
  RankEnd& end() { return end_; }

  // Passes on what can be read now, as much as the buffer holds. Returns how much.
  std::size_t read(RankStream stream, std::span<char> buffer);
  // Passes on all that its pipes hold now.
  void drain(std::span<char> buffer);
  void close(RankStream stream);
  // Whether it has ended by now; then end() says how, and both streams are read.
  bool try_reap(std::span<char> buffer);
  // To the rank and all that it has started, or to the rank's process alone; nothing once it has ended.
  void signal_group(int signal);
  void signal_alone(int signal);

 private:
  int index_;
  RankOutput* output_;
  std::optional<ChildProcess> process_;  // empty once it has ended
  std::array<UniqueFd, 2> streams_;      // empty once at their end
  TimePoint started_;
  RankEnd end_;
};

}  // namespace lockstep::internal
