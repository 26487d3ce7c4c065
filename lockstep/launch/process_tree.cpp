#include "lockstep/launch/process_tree.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/launch/reaper.h"
#include "lockstep/launch/signal_relay.h"

namespace lockstep::internal {
namespace {

constexpr std::array kStreams{RankStream::standard_output, RankStream::standard_error};
// How long other ranks may take to end after the first failure, before they are told to stop: ranks that failed because
// of it, and a rank that its error names.
constexpr Duration kMoment = std::chrono::milliseconds(250);
constexpr Duration kMomentForBlamed = std::chrono::seconds(2);

struct Rank {
  std::optional<ChildProcess> process;  // empty once it has ended
  std::array<UniqueFd, 2> streams;      // empty once at their end
  TimePoint started;
  RankEnd end;
};

class Supervisor {
 public:
  explicit Supervisor(const TreeOptions& options) : options_(options), reaper_(options.job_id) {}
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Outcome run(std::vector<Command> commands);

 private:
  enum class Phase { running, stopping, killing };
  enum class Source { signal, stop_request, process, stream, sink };
  struct Watch {
    Source source;
    Rank* rank;
    RankStream stream;
  };

  void start(Command command);
  void wait_for_events();
  void watch(int fd, short events, const Watch& what);
  void watch_all();
  void handle(const Watch& what);
  void on_signal(int signal);
  void on_stop_request();
  void suspend_all();
  void on_process_end(Rank& rank);
  void read_stream(Rank& rank, RankStream stream);
  void close_stream(Rank& rank, RankStream stream);
  Deadline stop_at() const;
  void stop(int signal);
  void kill_all();
  void judge(Rank& rank) const;
  void end_job();
  bool finished() const;
  void say(const std::string& line) const;

  const TreeOptions& options_;
  const SignalBlock sigpipe_{{SIGPIPE}};  // a reader that has gone is an error code of write
  SignalRelay signals_;
  Reaper reaper_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  std::optional<TimePoint> failed_at_;  // when the first failure was seen
  Deadline kill_at_ = Deadline::never();
  int stop_signal_ = 0;
  bool insisted_ = false;  // a second signal to stop came
  int round_ = 0;
  int running_ = 0;
  std::vector<pollfd> poll_set_;
  std::vector<Watch> watched_;  // the meaning of each entry of poll_set_
  // The capacity of a pipe.
  std::vector<char> buffer_ = std::vector<char>(std::size_t{64} << 10);
};

// After an exception the ranks are still there.
Supervisor::~Supervisor() {
  sigpipe_.discard(SIGPIPE);
  if (running_ == 0) return;
  ranks_.clear();
  kill_job_processes(options_.job_id.c_str());
}

void Supervisor::start(Command command) {
  Rank& rank = ranks_.emplace_back();
  rank.end.rank = static_cast<int>(ranks_.size()) - 1;
  std::array<UniqueFd, 2> writers;
  for (std::size_t i = 0; i < 2 && options_.output != nullptr; ++i) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("making a pipe for a rank's output", errno);
    rank.streams[i].reset(ends[0]);
    writers[i].reset(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  command.stdout_fd = writers[0] ? writers[0].get() : command.stdout_fd;
  command.stderr_fd = writers[1] ? writers[1].get() : command.stderr_fd;
  rank.started = steady_clock().now();
  rank.process.emplace(ChildProcess::start(command, sigpipe_.mask_before(), reaper_.fd()));
  rank.end.pid = rank.process->pid();
  ++running_;
}

Outcome Supervisor::run(std::vector<Command> commands) {
  ranks_.reserve(commands.size());
  for (Command& command : commands) start(std::move(command));
  if (options_.started) {
    std::vector<int> pids;
    for (const Rank& rank : ranks_) pids.push_back(rank.end.pid);
    options_.started(pids);
  }
  while (!finished()) wait_for_events();
  Outcome outcome{.ranks = {}, .stop_signal = stop_signal_};
  for (Rank& rank : ranks_) outcome.ranks.push_back(std::move(rank.end));
  return outcome;
}

bool Supervisor::finished() const {
  if (running_ > 0) return false;
  if (options_.output == nullptr || insisted_) return true;
  return std::none_of(kStreams.begin(), kStreams.end(),
                      [this](RankStream stream) { return options_.output->sink(stream).pending(); });
}

void Supervisor::watch(int fd, short events, const Watch& what) {
  poll_set_.push_back({fd, events, 0});
  watched_.push_back(what);
}

void Supervisor::watch_all() {
  poll_set_.clear();
  watched_.clear();
  watch(signals_.fd(), POLLIN, {Source::signal, nullptr, {}});
  if (options_.stop_fd >= 0) watch(options_.stop_fd, POLLIN, {Source::stop_request, nullptr, {}});
  for (const RankStream stream : kStreams) {
    if (options_.output == nullptr) break;
    OutputSink& sink = options_.output->sink(stream);
    const bool shared =
        stream == RankStream::standard_error && &sink == &options_.output->sink(RankStream::standard_output);
    if (sink.pending() && !shared) watch(sink.fd(), POLLOUT, {Source::sink, nullptr, stream});
  }
  // Output before deaths, so that a rank's last lines are there when its failure is judged.
  for (Rank& rank : ranks_) {
    for (const RankStream stream : kStreams) {
      const UniqueFd& fd = rank.streams[static_cast<std::size_t>(stream)];
      if (fd && !options_.output->sink(stream).full()) watch(fd.get(), POLLIN, {Source::stream, &rank, stream});
    }
  }
  for (Rank& rank : ranks_) {
    if (rank.process) watch(rank.process->pidfd(), POLLIN, {Source::process, &rank, {}});
  }
}

void Supervisor::wait_for_events() {
  watch_all();
  Deadline wake = std::min(kill_at_, stop_at());
  if (options_.output != nullptr) wake = std::min(wake, options_.output->wake_at());
  const int ready = ::poll(poll_set_.data(), poll_set_.size(), wake.poll_timeout_ms());
  if (ready < 0 && errno != EINTR) throw system_error("waiting for the ranks", errno);
  if (ready > 0) {
    ++round_;
    for (std::size_t i = 0; i < poll_set_.size(); ++i) {
      if (poll_set_[i].revents != 0) handle(watched_[i]);
    }
  }
  if (options_.output != nullptr) options_.output->tend();
  if (running_ > 0 && stop_at().expired()) stop(SIGTERM);
  if (phase_ == Phase::stopping && kill_at_.expired()) kill_all();
}

// When the other ranks are told to stop after a failure: at once if a signal ended a rank, since no other rank caused
// that. Any other failure may be the consequence of a rank that has not ended yet.
Deadline Supervisor::stop_at() const {
  if (phase_ != Phase::running || !failed_at_) return Deadline::never();
  Duration moment = kMoment;
  for (const Rank& rank : ranks_) {
    if (rank.process || rank.end.failure.text.empty()) continue;
    if (was_struck(rank.end.status)) return Deadline::at(*failed_at_);
    const auto blamed = static_cast<std::size_t>(rank.end.failure.blamed);
    if (blamed < ranks_.size() && ranks_[blamed].process) moment = kMomentForBlamed;
  }
  return Deadline::at(*failed_at_ + moment);
}

void Supervisor::handle(const Watch& what) {
  switch (what.source) {
    case Source::signal:
      while (const int signal = signals_.take()) on_signal(signal);
      return;
    case Source::stop_request: on_stop_request(); return;
    case Source::process: on_process_end(*what.rank); return;
    case Source::stream: read_stream(*what.rank, what.stream); return;
    case Source::sink: options_.output->sink(what.stream).write_some(); return;
  }
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGTSTP) return suspend_all();
  insisted_ = stop_signal_ != 0 || running_ == 0;
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (insisted_) return kill_all();
  say(fmt::format("{}: stopping {} rank{} (once more to kill)", signal_name(signal), running_,
                  running_ == 1 ? "" : "s"));
  stop(signal);
}

void Supervisor::on_stop_request() {
  std::uint64_t requests = 0;
  if (::read(options_.stop_fd, &requests, sizeof requests) < 0) return;
  if (phase_ == Phase::running) {
    stop(SIGTERM);
  } else {
    kill_all();
  }
}

// Ctrl-Z reaches only the launcher, since each rank has a process group of its own.
void Supervisor::suspend_all() {
  for (const Rank& rank : ranks_) {
    if (rank.process) rank.process->signal_group(SIGSTOP);
  }
  ::kill(::getpid(), SIGSTOP);
  for (const Rank& rank : ranks_) {
    if (rank.process) rank.process->signal_group(SIGCONT);
  }
}

void Supervisor::stop(int signal) {
  if (phase_ == Phase::killing) return;
  if (phase_ == Phase::running) kill_at_ = Deadline::after(options_.grace);
  phase_ = Phase::stopping;
  for (Rank& rank : ranks_) {
    if (!rank.process) continue;
    rank.end.told_to_stop = true;
    rank.process->signal_group(signal);
  }
}

void Supervisor::kill_all() {
  phase_ = Phase::killing;
  kill_at_ = Deadline::never();
  for (Rank& rank : ranks_) {
    if (!rank.process) continue;
    rank.end.told_to_stop = true;
    rank.end.killed = true;
    rank.process->signal_group(SIGKILL);
  }
}

void Supervisor::on_process_end(Rank& rank) {
  const std::optional<ExitStatus> status = rank.process->try_reap();
  if (!status) return;
  reaper_.forget(rank.process->pid());
  rank.process.reset();
  --running_;
  rank.end.status = *status;
  rank.end.after_start = steady_clock().now() - rank.started;
  rank.end.round = round_;
  rank.end.killed = rank.end.killed && status->signal == SIGKILL;
  // Its group is dead, so one read takes what is left in each pipe, and the next finds the end.
  for (const RankStream stream : kStreams) {
    read_stream(rank, stream);
    read_stream(rank, stream);
  }
  judge(rank);
  if (!failed_at_ && !rank.end.failure.text.empty()) failed_at_ = steady_clock().now();
  if (running_ == 0) end_job();
}

void Supervisor::judge(Rank& rank) const {
  RankEnd& end = rank.end;
  if (options_.judge) {
    end.failure = options_.judge(end.rank, end.status);
  } else if (!end.status.ok()) {
    end.failure.text = describe(end.status);
  }
  if (options_.output == nullptr) return;
  const ErrorText& text = options_.output->error_text(end.rank);
  end.error = text.first_line();
  end.last_error_lines = text.last_lines();
}

void Supervisor::end_job() {
  const int left = kill_job_processes(options_.job_id.c_str());
  if (left > 0 && !failed_at_ && stop_signal_ == 0) {
    say(
        fmt::format("{} process{} that the ranks had left behind {} ended; what is to outlive a job is started without "
                    "LOCKSTEP_JOB_ID in its environment",
                    left, left == 1 ? "" : "es", left == 1 ? "was" : "were"));
  }
  for (Rank& rank : ranks_) {
    for (const RankStream stream : kStreams) {
      read_stream(rank, stream);
      close_stream(rank, stream);
    }
  }
}

void Supervisor::read_stream(Rank& rank, RankStream stream) {
  const UniqueFd& fd = rank.streams[static_cast<std::size_t>(stream)];
  if (!fd) return;
  const ssize_t got = ::read(fd.get(), buffer_.data(), buffer_.size());
  if (got > 0) {
    options_.output->feed(rank.end.rank, stream, std::string_view(buffer_.data(), static_cast<std::size_t>(got)));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR))
    close_stream(rank, stream);
}

void Supervisor::close_stream(Rank& rank, RankStream stream) {
  UniqueFd& fd = rank.streams[static_cast<std::size_t>(stream)];
  if (!fd) return;
  options_.output->finish(rank.end.rank, stream);
  fd.reset();
}

void Supervisor::say(const std::string& line) const {
  if (options_.output != nullptr) options_.output->say(line);
}

}  // namespace

Outcome run_process_tree(std::vector<Command> commands, const TreeOptions& options) {
  return Supervisor(options).run(std::move(commands));
}

}  // namespace lockstep::internal
