// HostOutput is where the ranks of a host print: on the only or first host to the launcher's own standard output and
// error, on the others into pipes, from which whole lines go to the first host. Used by one thread, in its poll loop.
#pragma once

#include <poll.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/pipe.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/launch/rank_output.h"

namespace lockstep::internal {

class HostOutput {
 public:
  enum class Way { alone, shown_here, sent };

  // Errors as RankOutput.
  HostOutput(RankOutputOptions options, int ranks, Way way);

  RankOutput& ranks() { return *output_; }
  // A line of the agent's own, for the user of the first host.
  void say(const std::string& line, LogLevel level = LogLevel::info) { output_->say(line, level); }
  // The same, after the coordinator's report of the attempt.
  void say_after_report(std::string line) { after_report_ = std::move(line); }
  void report_is_said() {
    if (!after_report_.empty()) say(std::exchange(after_report_, {}));
  }
  // What another host's ranks have printed.
  void show(RankStream stream, const std::string& lines) { output_->sink(stream).append(lines); }
  bool is_pending() {
    return output_->sink(RankStream::standard_output).pending() || output_->sink(RankStream::standard_error).pending();
  }
  bool is_full() { return output_->sink(RankStream::standard_output).full() || is_error_full(); }

  // In the poll loop of a process tree, which writes the sinks itself.
  void watch_pipes(std::vector<pollfd>& set, const Coordinator& coordinator) const;
  void send_lines(Coordinator& coordinator);
  // In a loop without one.
  void watch_all(std::vector<pollfd>& set, const Coordinator& coordinator);
  Deadline wake_at() const { return output_->wake_at(); }
  void tend(Coordinator& coordinator);

  // All ranks have ended: passes on what they have printed, until the deadline at most. REQUIRES: Way::sent
  void flush(Coordinator& coordinator, Deadline deadline);

 private:
  struct Stream {
    Pipe pipe;
    std::string partial;  // of a line
  };

  bool is_error_full() { return output_->sink(RankStream::standard_error).full(); }
  bool has_pipes() const { return bool(streams_[0].pipe.reader); }
  void send_all_of(Stream& from, RankStream stream, Coordinator& coordinator);

  std::array<Stream, 2> streams_;
  std::string after_report_;
  std::unique_ptr<RankOutput> output_;
};

}  // namespace lockstep::internal
