#include "lockstep/job/launch/process_tree.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/launch/job_processes.h"
#include "lockstep/job/launch/orphans.h"
#include "lockstep/job/launch/rank_crew.h"
#include "lockstep/job/launch/reaper.h"
#include "lockstep/job/launch/stop_rules.h"

namespace lockstep::internal {
namespace {

constexpr Duration kReapAgain = std::chrono::seconds(1);
// Who waits for a job to stop does not wait longer for a reader that has paused.
constexpr Duration kLastWords = std::chrono::seconds(1);

class Supervisor {
 public:
  explicit Supervisor(const TreeOptions& options);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Outcome run(std::vector<Command> commands);

 private:
  enum class Source { signal, stop_request, process, stream, sink };
  struct Watch {
    Source source;
    RankProcess* rank;
    RankStream stream;
  };

  void start(std::vector<Command> commands);
  void wait_for_events();
  void watch(int fd, short events, const Watch& what);
  void watch_all();
  void serve_guests();
  void handle(const Watch& what);
  void on_signal(int signal);
  void on_stop_request();
  void on_process_end(RankProcess& rank);
  Deadline stop_at() const;
  void obey(const TreeOrder& order);
  void judge(RankEnd& end) const;
  void end_job();
  int kill_left_behind();
  void reap_orphans();
  bool finished() const;
  Deadline write_until() const;
  void say(const std::string& line) const;

  const TreeOptions& options_;
  // A reader that has gone, and a file at its limit, are error codes of write.
  const SignalBlock of_writes_{{SIGPIPE, SIGXFSZ}};
  std::optional<SignalRelay> own_signals_;
  SignalRelay& signals_;
  Reaper reaper_;
  std::optional<Orphans> orphans_;  // those that this process adopts
  Deadline reap_at_ = Deadline::never();
  RankCrew crew_;
  std::optional<TimePoint> failed_at_;  // when the first failure was seen
  std::optional<TimePoint> asked_at_;   // when the signal to stop came
  TimePoint ended_at_;                  // when the last rank was seen to have ended
  int stop_signal_ = 0;
  bool was_asked_ = false;  // to stop, by a signal or by another part of the program
  bool insisted_ = false;   // a second signal to stop came
  int round_ = 0;
  int running_ = 0;
  std::vector<pollfd> poll_set_;
  std::vector<Watch> watched_;             // the meaning of each entry of poll_set_, but for the guests'
  std::vector<std::size_t> guests_begin_;  // where each guest's entries begin
  // The capacity of a pipe.
  std::vector<char> buffer_ = std::vector<char>(std::size_t{64} << 10);
};

Supervisor::Supervisor(const TreeOptions& options)
    : options_(options),
      own_signals_(options.signals == nullptr ? std::optional<SignalRelay>(std::in_place) : std::nullopt),
      signals_(options.signals == nullptr ? *own_signals_ : *options.signals),
      reaper_(options.job_id),
      orphans_(options.adoption == Adoption::by_launcher ? std::optional<Orphans>(options.job_id) : std::nullopt),
      crew_(options.grace, options.stop_grace) {}

// After an exception the ranks are still there.
Supervisor::~Supervisor() {
  of_writes_.discard(SIGPIPE);
  of_writes_.discard(SIGXFSZ);
  if (running_ == 0) return;
  crew_.ranks().clear();
  kill_left_behind();
}

void Supervisor::start(std::vector<Command> commands) {
  crew_.ranks().reserve(commands.size());
  std::vector<int> pids;
  for (Command& command : commands) {
    const int index = static_cast<int>(crew_.ranks().size());
    crew_.ranks().emplace_back(options_.first_rank + index, index, std::move(command), options_.output,
                               options_.mask != nullptr ? *options_.mask : of_writes_.mask_before(), reaper_.fd());
    ++running_;
    pids.push_back(crew_.ranks().back().end().pid);
  }
  if (options_.started) options_.started(pids);
  for (TreeGuest* guest : options_.guests) guest->on_start(pids);
}

Outcome Supervisor::run(std::vector<Command> commands) {
  start(std::move(commands));
  reap_orphans();
  while (!finished()) wait_for_events();
  Outcome outcome{.ranks = {}, .stop_signal = stop_signal_};
  for (RankProcess& rank : crew_.ranks()) outcome.ranks.push_back(std::move(rank.end()));
  return outcome;
}

bool Supervisor::finished() const {
  if (running_ > 0) return false;
  if (options_.output == nullptr || options_.backlog == Backlog::of_caller || insisted_) return true;
  const auto is_pending = [this](RankStream stream) { return options_.output->sink(stream).pending(); };
  return write_until().expired() || std::ranges::none_of(kRankStreams, is_pending);
}

Deadline Supervisor::write_until() const {
  return running_ == 0 && was_asked_ ? Deadline::at(ended_at_ + kLastWords) : Deadline::never();
}

void Supervisor::watch(int fd, short events, const Watch& what) {
  poll_set_.push_back({fd, events, 0});
  watched_.push_back(what);
}

void Supervisor::watch_all() {
  poll_set_.clear();
  watched_.clear();
  guests_begin_.clear();
  watch(signals_.fd(), POLLIN, {Source::signal, nullptr, {}});
  if (options_.stop_fd >= 0) watch(options_.stop_fd, POLLIN, {Source::stop_request, nullptr, {}});
  for (const RankStream stream : kRankStreams) {
    if (options_.output == nullptr) break;
    OutputSink& sink = options_.output->sink(stream);
    const bool shared =
        stream == RankStream::standard_error && &sink == &options_.output->sink(RankStream::standard_output);
    if (sink.pending() && !shared) watch(sink.fd(), POLLOUT, {Source::sink, nullptr, stream});
  }
  // Output before deaths, so that a rank's last lines are there when its failure is judged.
  for (RankProcess& rank : crew_.ranks()) {
    for (const RankStream stream : kRankStreams) {
      const int fd = rank.stream_fd(stream);
      if (fd >= 0 && !options_.output->sink(stream).full()) watch(fd, POLLIN, {Source::stream, &rank, stream});
    }
  }
  for (RankProcess& rank : crew_.ranks()) {
    if (rank.is_running() && !rank.is_left_to_group())
      watch(rank.process().pidfd(), POLLIN, {Source::process, &rank, {}});
  }
  for (TreeGuest* guest : options_.guests) {
    guests_begin_.push_back(poll_set_.size());
    guest->watch(poll_set_);
  }
  guests_begin_.push_back(poll_set_.size());
}

void Supervisor::wait_for_events() {
  watch_all();
  Deadline wake = std::min({crew_.kill_at(), crew_.look_at(), stop_at(), write_until(), reap_at_});
  if (options_.output != nullptr) wake = std::min(wake, options_.output->wake_at());
  for (const TreeGuest* guest : options_.guests) wake = std::min(wake, guest->wake_at());
  const int ready = ::poll(poll_set_.data(), poll_set_.size(), wake.poll_timeout_ms());
  if (ready < 0 && errno != EINTR) throw system_error("waiting for the ranks", errno);
  if (ready > 0) {
    ++round_;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (poll_set_[i].revents != 0) handle(watched_[i]);
    }
  }
  serve_guests();
  if (reap_at_.expired()) reap_orphans();
  if (options_.output != nullptr) options_.output->tend();
  if (running_ > 0 && stop_at().expired()) crew_.stop();
  if (crew_.kill_at().expired()) crew_.kill();
  if (!crew_.look_at().expired()) return;
  for (RankProcess& rank : crew_.ranks()) {
    if (rank.is_running() && rank.is_left_to_group()) on_process_end(rank);
  }
}

void Supervisor::serve_guests() {
  for (std::size_t i = 0; i < options_.guests.size(); ++i) {
    const std::span<const pollfd> set(poll_set_);
    obey(options_.guests[i]->serve(set.subspan(guests_begin_[i], guests_begin_[i + 1] - guests_begin_[i])));
  }
}

// When the other ranks are told to stop after a failure.
Deadline Supervisor::stop_at() const {
  if (crew_.phase() != RankCrew::Phase::running || !failed_at_) return Deadline::never();
  std::vector<RankEnd> ended;
  for (const RankProcess& rank : crew_.ranks()) {
    if (!rank.is_running()) ended.push_back(rank.end());
  }
  const auto runs = [this](int rank) {
    const auto own = static_cast<std::size_t>(rank - options_.first_rank);
    return own < crew_.ranks().size() && crew_.ranks()[own].is_running();
  };
  return Deadline::at(*failed_at_ + moment_after_failure(ended, runs, kMomentForBlamed));
}

void Supervisor::handle(const Watch& what) {
  switch (what.source) {
    case Source::signal:
      while (const int signal = signals_.take()) on_signal(signal);
      return;
    case Source::stop_request: on_stop_request(); return;
    case Source::process: on_process_end(*what.rank); return;
    case Source::stream: what.rank->read(what.stream, buffer_); return;
    case Source::sink: options_.output->sink(what.stream).write_some(); return;
  }
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGTSTP) return crew_.suspend();
  const TimePoint now = steady_clock().now();
  const bool again = asked_at_.has_value();
  if (again && signal != SIGINT && now - *asked_at_ < kSameRequest) return;
  const auto asks_anew = [signal](TreeGuest* guest) { return guest->on_insist(signal); };
  if (again && std::ranges::none_of(options_.guests, asks_anew)) {
    insisted_ = true;
    return crew_.kill();
  }
  asked_at_ = now;
  was_asked_ = true;
  stop_signal_ = signal;
  if (again) return;
  bool taken = false;
  for (TreeGuest* guest : options_.guests) taken = guest->on_signal(signal) || taken;
  if (running_ == 0) {
    insisted_ = true;
  } else if (!taken) {
    say(fmt::format("{}: stopping {} rank{} (repeat to kill)", signal_name(signal), running_,
                    running_ == 1 ? "" : "s"));
    crew_.ask_to_stop(signal);
  }
}

void Supervisor::on_stop_request() {
  std::uint64_t requests = 0;
  if (::read(options_.stop_fd, &requests, sizeof requests) < 0) return;
  was_asked_ = true;
  if (crew_.phase() == RankCrew::Phase::running) {
    crew_.stop();
  } else {
    crew_.kill();
  }
}

void Supervisor::obey(const TreeOrder& order) {
  was_asked_ = was_asked_ || order.kind == TreeOrder::Kind::stop || order.kind == TreeOrder::Kind::kill;
  switch (order.kind) {
    case TreeOrder::Kind::go_on: return;
    case TreeOrder::Kind::stop: crew_.ask_to_stop(order.signal); return;
    case TreeOrder::Kind::end: crew_.stop(); return;
    case TreeOrder::Kind::kill: crew_.kill(); return;
  }
}

void Supervisor::on_process_end(RankProcess& rank) {
  if (!crew_.try_reap(rank, buffer_)) return;
  reaper_.forget(rank.end().pid);
  --running_;
  RankEnd& end = rank.end();
  end.round = round_;
  judge(end);
  if (!failed_at_ && !end.failure.text.empty()) failed_at_ = steady_clock().now();
  for (TreeGuest* guest : options_.guests) guest->on_end(end);
  if (running_ == 0) end_job();
}

void Supervisor::judge(RankEnd& end) const {
  if (options_.judge) {
    end.failure = options_.judge(end.rank, end.status);
  } else if (!end.status.ok()) {
    end.failure.text = describe(end.status);
  }
  if (end.failure.fault == Fault::disagreement && end.failure.blamed < 0) {
    end.failure.blamed = crew_.suspended_rank();  // whoever waits for several ranks names none of them
  }
  if (!end.failure.error.empty()) end.error = end.failure.error;
  end.last_operation = end.failure.last_operation;
}

int Supervisor::kill_left_behind() {
  const int found = kill_job_processes(options_.job_id.c_str(), ::getpgrp(), orphans_ ? &*orphans_ : nullptr);
  reap_orphans();
  return found;
}

void Supervisor::reap_orphans() {
  if (!orphans_) return;
  std::vector<int> ours{reaper_.pid()};
  for (const RankProcess& rank : crew_.ranks()) {
    if (rank.is_running()) ours.push_back(rank.end().pid);
  }
  Orphans::reap(ours);
  reap_at_ = Deadline::after(kReapAgain);
}

void Supervisor::end_job() {
  ended_at_ = steady_clock().now();
  const int left = kill_left_behind();
  if (left > 0 && !failed_at_ && stop_signal_ == 0) {
    say(
        fmt::format("{} process{} that the ranks had left behind {} ended; start a process that must outlive its job "
                    "without LOCKSTEP_JOB_ID in its environment",
                    left, left == 1 ? "" : "es", left == 1 ? "was" : "were"));
  }
  for (RankProcess& rank : crew_.ranks()) {
    rank.drain(buffer_);
    for (const RankStream stream : kRankStreams) rank.close(stream);
  }
}

void Supervisor::say(const std::string& line) const {
  if (options_.output != nullptr) options_.output->say(line);
}

}  // namespace

Outcome run_process_tree(std::vector<Command> commands, const TreeOptions& options) {
  return Supervisor(options).run(std::move(commands));
}

}  // namespace lockstep::internal
