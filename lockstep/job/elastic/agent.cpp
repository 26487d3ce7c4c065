#include "lockstep/job/elastic/agent.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/elastic/coordinator.h"
#include "lockstep/job/elastic/hello.h"
#include "lockstep/job/elastic/host_output.h"
#include "lockstep/job/elastic/host_reports.h"
#include "lockstep/job/elastic/kept_out.h"
#include "lockstep/job/elastic/meeting.h"
#include "lockstep/job/elastic/own_request.h"
#include "lockstep/job/launch/attempt.h"
#include "lockstep/job/launch/error_file.h"
#include "lockstep/job/launch/job_store.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/process_tree.h"
#include "lockstep/job/launch/rank_census.h"
#include "lockstep/job/launch/remote_host.h"

namespace lockstep::internal {
namespace {

constexpr Duration kLastWords = std::chrono::seconds(2);
constexpr Duration kRestAfterStop = std::chrono::seconds(1);

class Agent : private TreeGuest {
 public:
  Agent(const AgentOptions& options, Met met, SignalRelay& signals)
      : options_(options), signals_(signals), met_(std::move(met)), request_(options) {}

  AgentResult run();

 private:
  void on_start(const std::vector<int>& pids) override { pids_ = pids; }
  void watch(std::vector<pollfd>& set) override;
  Deadline wake_at() const override { return met_.coordinator->wake_at(); }
  TreeOrder serve(std::span<const pollfd> ready) override;
  bool on_signal(int signal) override;
  bool on_insist(int signal) override;
  void on_end(const RankEnd& end) override { met_.coordinator->post(RankEnded{generation_, end}); }

  void handle(const AgentMessage& message);
  void wait(Deadline limit = Deadline::never());
  void show_rest();
  bool was_asked() const;
  void meet_anew(bool listens_first, const Handover& handover = {});
  void join(const Welcome& welcome);
  void run_attempt(const StartRanks& start);
  void run_ranks(const Attempt& attempt, bool counts);
  void tell_status();
  void tell_of_crash(const Outcome& outcome);

  const AgentOptions& options_;
  SignalRelay& signals_;
  const SignalBlock of_writes_{{SIGPIPE}};
  Met met_;
  std::string tag_;  // by which this host's processes are found
  std::optional<LocalJob> job_;
  std::deque<AgentMessage> later_;  // what came while ranks ran
  int generation_ = 0;
  int first_rank_ = 0;
  std::vector<int> pids_;             // of the ranks that run
  std::unique_ptr<HostWatch> watch_;  // of the attempt
  std::optional<KeptOut> kept_out_;
  std::optional<Handover> meets_anew_;
  OwnRequest request_;
  std::optional<Farewell> farewell_;
};

AgentResult Agent::run() {
  while (!farewell_) {
    if (!met_.coordinator) return {.exit_code = request_.exit_code(), .was_asked = true};
    met_.coordinator->tend();
    met_.output->tend(*met_.coordinator);
    if (!later_.empty()) {
      const AgentMessage message = std::move(later_.front());
      later_.pop_front();
      handle(message);
    } else if (const auto message = met_.coordinator->take()) {
      handle(*message);
    } else if (const std::string lost = met_.coordinator->lost(); !lost.empty()) {
      say_on_standard_error(lost);
      return {.exit_code = kRendezvousExitCode};
    } else if (met_.coordinator->yields()) {
      meet_anew(false);
    } else if (const auto handover = std::exchange(meets_anew_, std::nullopt)) {
      meet_anew(true, *handover);
    } else if (request_.waits_in_vain(*met_.coordinator)) {
      return {.exit_code = request_.exit_code(), .was_asked = true};
    } else if (request_.ends_alone() && !met_.is_first) {
      return {.exit_code = options_.machine.stop_exit_code, .was_asked = true};
    } else {
      wait();
    }
  }
  AgentResult result{.exit_code = farewell_->exit_code,
                     .is_first = met_.is_first,
                     .was_asked = was_asked(),
                     .job_id = job_ ? job_->id() : "",
                     .run_id = job_ ? job_->options().run_id : "",
                     .text = farewell_->text,
                     .attempts = met_.coordinator->outcomes()};
  if (options_.on_over) {
    met_.output->ranks().write_ready();  // a report may go to the same place
    options_.on_over(result);
  }
  if (met_.is_first) {
    show_rest();
    met_.output->ranks().close();
  } else {
    met_.output->flush(*met_.coordinator, Deadline::after(kLastWords));
  }
  met_.coordinator->close();
  if (!met_.is_first && farewell_->exit_code != 0 && !farewell_->text.empty()) {
    say_on_standard_error("the job has ended: " + farewell_->text);
  }
  result.was_asked = was_asked();  // meanwhile, too
  return result;
}

// A reader that takes its time gets everything, but whoever has asked for the end does not wait.
void Agent::show_rest() {
  Deadline limit = was_asked() ? Deadline::after(kRestAfterStop) : Deadline::never();
  while (met_.output->is_pending() && !limit.expired()) {
    wait(limit);
    if (request_.is_made()) limit = std::min(limit, Deadline::after(kRestAfterStop));
    met_.output->tend(*met_.coordinator);
  }
}

bool Agent::was_asked() const {
  const std::vector<Outcome> all = met_.coordinator->outcomes();
  return request_.is_made() || (!all.empty() && (all.back().stop_signal != 0 || !all.back().left.empty()));
}

void Agent::wait(Deadline limit) {
  std::vector<pollfd> set{{signals_.fd(), POLLIN, 0}};
  met_.coordinator->watch(set);
  met_.output->watch_all(set, *met_.coordinator);
  if (kept_out_ && kept_out_->is_over()) {
    kept_out_.reset();
    met_.coordinator->post(Reached{});
  }
  const Deadline try_at = kept_out_ ? kept_out_->wake_at() : Deadline::never();
  const Deadline wake = std::min({limit, met_.coordinator->wake_at(), met_.output->wake_at(), try_at});
  if (::poll(set.data(), set.size(), wake.poll_timeout_ms()) < 0 && errno != EINTR) {
    throw system_error("waiting for the other hosts", errno);
  }
  while (const int signal = signals_.take()) {
    if (signal == SIGTSTP) {
      ::kill(::getpid(), SIGSTOP);
      continue;
    }
    if (request_.is_made()) request_.insist_without_ranks(signal, steady_clock().now());
    on_signal(signal);
  }
}

void Agent::handle(const AgentMessage& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    join(*welcome);
  } else if (const auto* start = std::get_if<StartRanks>(&message)) {
    run_attempt(*start);
  } else if (const auto* notice = std::get_if<Notice>(&message)) {
    say_on_standard_error(notice->text);
  } else if (std::holds_alternative<TellStatus>(message)) {
    tell_status();
  } else if (const auto* kept = std::get_if<KeepOut>(&message)) {
    kept_out_.emplace(*kept, options_.endpoint.port);
  } else if (const auto* anew = std::get_if<MeetAnew>(&message)) {
    meets_anew_ = anew->handover;
  } else if (const auto* farewell = std::get_if<Farewell>(&message)) {
    farewell_ = *farewell;
  }
}

void Agent::meet_anew(bool listens_first, const Handover& handover) {
  met_.coordinator.reset();
  kept_out_.reset();
  if (auto met = request_.meet_again(signals_, listens_first, handover)) met_ = std::move(*met);
}

void Agent::join(const Welcome& welcome) {
  // Another one than the first listens only until that comes.
  if (!met_.is_first || options_.node_rank.value_or(0) == 0) tell_of_joining();
  // The ranks of a job carry the same job id on all hosts, and hosts may share a machine: what this agent has started
  // is found by a name of its own.
  tag_ = options_.is_alone ? welcome.job_id : fmt::format("{}-{:010}", welcome.job_id, ::getpid());
  JobOptions job = options_.job;
  job.max_restarts = options_.machine.max_restarts;
  job.run_id = options_.rdzv_id;
  job.id = welcome.job_id;
  if (!options_.is_alone) job.tag = tag_;
  job.token = options_.token;
  job_.emplace(std::move(job));
  if (options_.monitor != nullptr) options_.monitor->join(job_->id(), job_->options().run_id, met_.is_first);
  if (!options_.is_alone) return;
  met_.output->say(job_->description());
  for (const std::string& line : options_.opening) met_.output->say(line);
}

void Agent::run_attempt(const StartRanks& start) {
  generation_ = start.generation;
  first_rank_ = start.first_rank;
  try {
    const Attempt attempt(*job_, {.generation = start.generation,
                                  .restarts = start.restarts,
                                  .node_rank = start.node_rank,
                                  .nodes = start.nodes,
                                  .first_rank = start.first_rank,
                                  .world_size = start.world_size,
                                  .store = start.store,
                                  .master_addr = start.master_addr,
                                  .master_port = start.master_port,
                                  .restart_reason = start.restart_reason});
    const bool has_begun = options_.is_alone && start.generation == 0;
    if (!has_begun) met_.output->ranks().begin_attempt(start.generation, start.first_rank);
    if (options_.make_watch) {
      watch_ = options_.make_watch(
          std::chrono::milliseconds(start.tell_hang_after_ms),
          {.recordings = attempt.recordings(),
           .first_rank = first_rank_,
           .output = met_.output->ranks(),
           .host = options_.is_alone ? "" : agent_host_name(),
           .report = [this](HostSight sight) { post_sight(*met_.coordinator, generation_, std::move(sight)); }});
    }
    run_ranks(attempt, start.wants_counts);
  } catch (const Error& error) {
    post_failed_start(*met_.coordinator, start, options_.job.ranks, error);
  }
  watch_.reset();
  pids_.clear();
  if (!met_.is_first) met_.output->flush(*met_.coordinator, Deadline::never());
  met_.coordinator->post(HostDone{generation_, options_.master_port != 0 ? options_.master_port : free_port()});
}

void Agent::run_ranks(const Attempt& attempt, bool counts) {
  std::vector<Command> commands;
  for (int rank = first_rank_; rank < first_rank_ + options_.job.ranks; ++rank) {
    commands.push_back(attempt.command(rank, options_.path, options_.argv));
  }
  TreeOptions tree;
  tree.grace = options_.grace;
  tree.stop_grace = options_.stop_grace;
  tree.job_id = tag_;
  tree.first_rank = first_rank_;
  tree.output = &met_.output->ranks();
  tree.backlog = met_.is_first ? Backlog::of_caller : Backlog::of_tree;
  tree.adoption = Adoption::by_launcher;
  tree.judge = [&attempt](int rank, const ExitStatus& status) { return attempt.judge(rank, status); };
  tree.signals = &signals_;
  tree.guests = {this};
  if (watch_) tree.guests.push_back(watch_.get());
  RankCensus census(attempt.recordings(), first_rank_, [this](const std::vector<RankStatus>& ranks) {
    for (const RankStatus& rank : ranks) met_.coordinator->post(RankCounts{generation_, rank});
  });
  if (counts) tree.guests.push_back(&census);
  const Outcome outcome = run_process_tree(std::move(commands), tree);
  if (counts) census.finish();
  tell_of_crash(outcome);
  const std::string recordings = attempt.recordings().save(outcome, options_.flight, generation_);
  if (met_.is_first) {
    met_.output->say_after_report(recordings);
  } else if (!recordings.empty()) {
    met_.output->say(fmt::format("host {}: {}", agent_host_name(), recordings));
  }
  if (const RankEnd* first = outcome.first_failure()) pass_error_on(*first);
}

// After the report that the rank has ended: naming the places in a stack takes a while.
void Agent::tell_of_crash(const Outcome& outcome) {
  const RankEnd* first = outcome.first_failure();
  if (!watch_ || first == nullptr) return;
  const std::vector<std::string> lines = watch_->crash_stack(*first);
  if (!lines.empty()) met_.coordinator->post(RankStack{generation_, first->rank, {lines.begin(), lines.end()}});
}

void Agent::tell_status() {
  HostStatus status{.host = agent_host_name()};
  if (options_.describe_ranks && job_) status.ranks = options_.describe_ranks(job_->id(), pids_);
  met_.coordinator->post(status);
}

void Agent::watch(std::vector<pollfd>& set) {
  met_.coordinator->watch(set);
  met_.output->watch_pipes(set, *met_.coordinator);
}

TreeOrder Agent::serve(std::span<const pollfd> /*ready*/) {
  Coordinator& coordinator = *met_.coordinator;
  coordinator.tend();
  met_.output->send_lines(coordinator);
  while (auto message = coordinator.take()) {
    if (const auto* stop = std::get_if<StopRanks>(&*message)) return {TreeOrder::Kind::stop, stop->signal};
    if (std::holds_alternative<EndRanks>(*message)) return {.kind = TreeOrder::Kind::end};
    if (std::holds_alternative<KillRanks>(*message)) return {.kind = TreeOrder::Kind::kill};
    if (const auto* notice = std::get_if<Notice>(&*message)) {
      say_on_standard_error(notice->text);
    } else if (std::holds_alternative<TellStatus>(*message)) {
      tell_status();
    } else if (const auto* stacks = std::get_if<TellStacks>(&*message)) {
      if (watch_) watch_->tell_stacks(stacks->first);
    } else {
      later_.push_back(std::move(*message));
    }
  }
  // Without the first host nobody knows what the others do: what these ranks did from now on might be another history.
  return {.kind = coordinator.lost().empty() && !request_.waits_in_vain(coordinator) ? TreeOrder::Kind::go_on
                                                                                     : TreeOrder::Kind::kill};
}

bool Agent::on_signal(int signal) {
  if (signal == SIGTSTP || !met_.coordinator->lost().empty()) return false;
  request_.hear(signal, steady_clock().now());
  met_.coordinator->post(AskToStop{signal});
  return true;
}

bool Agent::on_insist(int signal) {
  met_.coordinator->post(AskToStop{signal});
  return !request_.insist(signal) && met_.coordinator->lost().empty();
}

}  // namespace

AgentResult run_agent(const AgentOptions& options, SignalRelay& signals) {
  if (options.rdzv_id.size() > kMostRdzvIdBytes) {
    throw Error(ErrorKind::invalid_argument, fmt::format("--rdzv-id has {} bytes; at most {} are allowed",
                                                         options.rdzv_id.size(), kMostRdzvIdBytes));
  }
  Met met = meet(options, signals, true);
  if (!met.coordinator) return {.exit_code = options.machine.stop_exit_code, .was_asked = true};
  return Agent(options, std::move(met), signals).run();
}

}  // namespace lockstep::internal
