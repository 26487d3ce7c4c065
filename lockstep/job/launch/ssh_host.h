// SshHost is one host of a plan while its part of the job runs: the ssh that has started the far end there, or the far
// end itself if it is this host. Not thread-safe; never blocks.
#pragma once

#include <poll.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/agent_marks.h"
#include "lockstep/job/launch/child_process.h"
#include "lockstep/job/launch/output_sink.h"
#include "lockstep/job/launch/remote_order.h"

namespace lockstep::internal {

struct PlannedHost {
  bool is_here = false;  // started without ssh
  RemoteOrder order;     // its host is the name for ssh
};

struct SshPlan {
  std::string ssh{};                 // the client's file
  std::string program{};             // this one's file
  std::string remote_program{};      // on the other hosts
  Duration end_limit{};              // how long what was told to stop may take, before it is killed
  std::vector<PlannedHost> hosts{};  // not empty; the first one's agent is the job's first
};

class SshHost {
 public:
  // Of what its agent says on standard error.
  enum class Way {
    shown,  // the first agent: it speaks for the job
    kept,   // until it fails, or for as long as it takes long to join
  };
  enum class Failure {
    none,
    lost,    // its connection has ended before its agent, or there never was one
    killed,  // its agent was
    unable,  // its agent has ended before it joined the job
  };

  // Errors as ChildProcess::start().
  SshHost(const SshPlan& plan, const PlannedHost& host, Way way);

  const std::string& name() const { return name_; }
  bool is_running() const { return !status_; }
  // Its agent has ended, or will never be heard of again.
  bool is_over() const { return status_ || marks_.end(); }
  bool has_ended() const { return marks_.end().has_value(); }  // its agent, by itself or by a signal
  Failure failure() const;
  // Of the job, if its agent is the first and there is no failure, or if this failure has ended the job.
  int code() const;
  // In words; there is a failure.
  std::string why(const SshPlan& plan) const;
  // What its agent or ssh has said last and was not shown.
  const std::string& said() const { return said_; }

  // While the launcher's standard error is full, nothing more is read.
  std::array<pollfd, 3> wanted(const OutputSink& errors) const;
  // When it has something to do even if none of these has.
  Deadline wake_at() const { return waits_to_join() && !show_at_.expired() ? show_at_ : Deadline::never(); }
  void tend(OutputSink& errors);
  void send(int signal) { unsent_ += static_cast<char>(signal); }
  void hang_up() { input_.reset(); }
  // Ends its ssh, at once. What is lost thereby is no failure.
  void give_up();
  // Nothing was heard of its agent: there may be none.
  bool is_silent() const { return marks_.stage() == AgentStage::absent; }

 private:
  void write_order();
  void read_errors(OutputSink& errors);
  void pass_on(const std::string& text, OutputSink& errors);
  bool waits_to_join() const {
    return way_ == Way::kept && input_ && !is_over() && marks_.stage() != AgentStage::joined;
  }
  void show_lines(OutputSink& errors);

  std::string name_;
  Way way_;
  Bytes unsent_;
  MarkReader marks_;
  std::string said_;
  Deadline show_at_;
  std::optional<ChildProcess> process_;
  UniqueFd input_, error_;
  std::optional<ExitStatus> status_;  // of its ssh
  bool given_up_ = false;
};

}  // namespace lockstep::internal
