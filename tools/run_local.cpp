#include "tools/run_local.h"

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/base/log_line.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/crash_stack.h"
#include "lockstep/launch/end_note.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/event_hook.h"
#include "lockstep/launch/hang_guest.h"
#include "lockstep/launch/job_report.h"
#include "lockstep/launch/job_store.h"
#include "lockstep/launch/local_job.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/rank_census.h"
#include "tools/run_command.h"
#include "tools/run_program.h"

namespace lockstep::tools {
namespace {

// Tells that all ranks have been started, and of a request to stop.
class EventGuest final : public TreeGuest {
 public:
  using Tell = std::function<void(JobEvent::Kind kind, int signal)>;
  EventGuest(JobEvent::Kind start, Tell tell) : start_(start), tell_(std::move(tell)) {}

  void on_start(const std::vector<int>& /*pids*/) override { tell_(start_, 0); }
  bool on_signal(int signal) override {
    tell_(JobEvent::Kind::stop, signal);
    return false;
  }

 private:
  JobEvent::Kind start_;
  Tell tell_;
};

class LocalRun {
 public:
  LocalRun(const RunOptions& options, const std::string& path, const JobCgroup* cgroup)
      : options_(options),
        path_(path),
        job_({.ranks = options.ranks,
              .max_restarts = options.max_restarts,
              .run_id = options.rdzv_id,
              .role = options.role,
              .virtual_local_rank = options.virtual_local_rank,
              .placements = place_ranks(parse_binding(options.bind), options.ranks),
              .cgroup = cgroup,
              .environment = environment_of(options)}),
        signals_(options.signals_to_handle.empty() ? SignalRelay::stop_signals() : options.signals_to_handle),
        output_(options.output, options.ranks),
        report_(job_.id(), job_.options().run_id, options.program),
        hook_(options.on_event),
        metrics_(options.metrics, LOCKSTEP_VERSION, options.program_name,
                 [this](const std::string& line) { output_.say(line); }) {
    if (metrics_.monitor() != nullptr) metrics_.monitor()->join(job_.id(), job_.options().run_id, true);
  }

  int run() {
    output_.say(job_.description());
    if (!options_.bind.empty()) output_.say(describe(job_.options().placements, 0));
    if (options_.limits.any()) output_.say(fmt::format("each rank has at most {}", describe(options_.limits)));
    Outcome outcome = attempt(0, nullptr);
    report_.add(outcome);
    for (int number = 1; number <= options_.max_restarts; ++number) {
      if (!outcome.failed() || outcome.stop_signal != 0) break;
      output_.say(fmt::format("restart {} of {}", number, options_.max_restarts));
      if (!restart(number, outcome)) break;
      report_.add(outcome);
    }
    return finish(outcome);
  }

 private:
  // Whether there was another attempt; if none can be made, the outcome stays that of the one before.
  bool restart(int number, Outcome& outcome) {
    try {
      output_.begin_attempt(number);
      outcome = attempt(number, &outcome);
      return true;
    } catch (const std::exception& error) {
      output_.say(fmt::format("cannot restart: {}", error.what()), LogLevel::error);
      return false;
    }
  }

  // `before`: how the last one went; null for the first.
  Outcome attempt(int number, const Outcome* before) {
    // Each attempt has a store of its own: what is left of an earlier one finds nobody.
    const JobStore store("localhost", job_.token(), job_.id(), options_.ranks, number);
    const Attempt attempt(job_, {.generation = number,
                                 .restarts = number,
                                 .world_size = options_.ranks,
                                 .store = store.endpoint(),
                                 .master_addr = options_.master_addr.empty() ? store.host() : options_.master_addr,
                                 .master_port = options_.master_port != 0 ? options_.master_port : free_port(),
                                 .restart_reason = before == nullptr ? "" : restart_reason(*before)});
    std::vector<Command> commands;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      commands.push_back(attempt.command(rank, path_, options_.program));
    }
    TreeOptions tree;
    tree.grace = options_.shutdown_timeout;
    tree.stop_grace = options_.stop_grace;
    tree.job_id = job_.id();
    tree.output = &output_;
    tree.backlog = Backlog::of_caller;
    tree.adoption = Adoption::by_launcher;
    tree.judge = [&attempt](int rank, const ExitStatus& status) { return attempt.judge(rank, status); };
    tree.signals = &signals_;
    HangGuest hang(hang_options(options_.hang_timeout), attempt.recordings(), 0, output_);
    EventGuest events(before == nullptr ? JobEvent::Kind::start : JobEvent::Kind::restart,
                      [&](JobEvent::Kind kind, int signal) { tell(kind, number, before, signal); });
    RankCensus census(attempt.recordings(), 0, [&](const std::vector<RankStatus>& ranks) {
      metrics_.monitor()->on_hang(hang.hang());
      metrics_.monitor()->on_ranks(log_host(), ranks);
    });
    tree.guests.insert(tree.guests.end(), {&hang, &events});
    if (metrics_.monitor() != nullptr) tree.guests.push_back(&census);
    Outcome outcome = run_process_tree(std::move(commands), tree);
    if (metrics_.monitor() != nullptr) census.finish();
    outcome.hang = hang.verdict().text;
    outcome.hang_blamed = hang.verdict().blamed;
    add_crash_stack(outcome, attempt.recordings());
    for (const std::string& line : report(outcome)) output_.say(line, LogLevel::error);
    const std::string recordings = attempt.recordings().save(outcome, options_.flight, number);
    if (!recordings.empty()) output_.say(recordings);
    return outcome;
  }

  void tell(JobEvent::Kind kind, int number, const Outcome* why, int signal, int exit_code = 0) {
    if (!hook_.is_wanted() && metrics_.monitor() == nullptr) return;
    const JobEvent event{.kind = kind,
                         .job_id = job_.id(),
                         .run_id = job_.options().run_id,
                         .attempt = number,
                         .world_size = options_.ranks,
                         .hosts = {{.name = log_host(), .ranks = options_.ranks}},
                         .outcome = why == nullptr ? std::nullopt : std::optional(*why),
                         .stop_signal = signal,
                         .exit_code = exit_code};
    if (hook_.is_wanted()) hook_.post(event);
    if (metrics_.monitor() != nullptr) metrics_.monitor()->on_event(event);
    attempt_ = number;
  }

  int finish(const Outcome& outcome) {
    const int code = exit_code_of(outcome, options_.stop_exit_code);
    const RankEnd* cause = outcome.cause();
    note_.write(code, !outcome.hang.empty() || cause == nullptr ? outcome.hang : describe_failure(*cause));
    tell(JobEvent::Kind::end, attempt_, &outcome, outcome.stop_signal, code);
    if (const RankEnd* first = outcome.first_failure()) pass_error_on(*first);
    if (!options_.report.empty()) {
      output_.write_ready();  // the report may go to the same place
      try {
        report_.write(options_.report, code);
      } catch (const Error& error) {
        output_.say(error.what(), LogLevel::warning);
      }
    }
    // Who waits for the launcher to stop should not wait for a reader that has paused.
    const bool was_stopped = outcome.stop_signal != 0;
    const bool was_asked =
        output_.flush(was_stopped ? Deadline::after(std::chrono::seconds(1)) : Deadline::never(), &signals_);
    hook_.finish(was_stopped || was_asked, signals_.fd());
    return code;
  }

  const RunOptions& options_;
  const std::string path_;
  const LocalJob job_;
  SignalRelay signals_;
  RankOutput output_;
  JobReport report_;
  EventHook hook_;
  EndNote note_;
  const JobMetrics metrics_;
  int attempt_ = 0;  // of which was told last
};

}  // namespace

int run_local(const RunOptions& options, const std::string& path, const JobCgroup* cgroup) {
  return LocalRun(options, path, cgroup).run();
}

}  // namespace lockstep::tools
