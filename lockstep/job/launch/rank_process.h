// RankProcess is one rank of a process tree: its process, its output, and how it ended. Not thread-safe; never blocks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/rank_output.h"

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
  // Whether it has ended by now; then end() says how, and both streams are read. The rest of its group is killed.
  bool try_reap(std::span<char> buffer);
  // The signal that it has ended by, if that is one that was sent here; also if it is a shell that tells so of a
  // command. 0: it runs, or has ended otherwise.
  int ended_by_sent() const;
  // It has ended by a signal that was sent here, and its group goes on: that gets the signal too, unless it has. To be
  // reaped later.
  void leave_to_group();
  bool is_left_to_group() const { return is_left_to_group_; }
  // To the rank and all that it has started; nothing once it has been reaped, as below.
  void signal_group(int signal);
  // To the rank's process, not to those that it has started. If it is a shell, a signal that a key of a terminal sends
  // (SIGINT, SIGQUIT) goes to what that runs, too: a shell does not end by it before its program has ended.
  void signal_program(int signal);

 private:
  int index_;
  RankOutput* output_;
  std::optional<ChildProcess> process_;  // empty once it has ended
  std::array<UniqueFd, 2> streams_;      // empty once at their end
  TimePoint started_;
  std::uint64_t sent_ = 0;           // signals; bit 0 is signal 1
  std::uint64_t sent_to_group_ = 0;  // of these
  std::vector<int> asked_;           // what a shell runs that got a signal, too
  bool is_left_to_group_ = false;
  RankEnd end_;
};

}  // namespace lockstep::internal
