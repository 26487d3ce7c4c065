#include "lockstep/job/launch/spawn.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/line_buffering.h"
#include "lockstep/base/log.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/job/launch/attempt.h"
#include "lockstep/job/launch/cores.h"
#include "lockstep/job/launch/job_store.h"
#include "lockstep/job/launch/local_job.h"
#include "lockstep/job/launch/process_tree.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr const char* kCallVariable = "LOCKSTEP_SPAWN";           // the call that a copy was started for: "main#3"
constexpr const char* kReportVariable = "LOCKSTEP_SPAWN_REPORT";  // its descriptor

// The file's first byte; the exception's text follows.
constexpr char kReached = 'r';
constexpr char kRaised = 'x';
constexpr char kLostAPeer = 'p';
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;

// What a copy of a program tells the process that spawned it: that it came to its spawn() call, and with which
// exception its worker ended. A memory file that both have open, so that neither waits for the other.
class SpawnReport {
 public:
  struct Content {
    bool reached = false;  // the copy came to its spawn() call
    bool raised = false;
    bool lost_a_peer = false;  // the exception was an Error{peer_lost}
    std::string what;
  };

  // In the parent.
  static SpawnReport create() {
    UniqueFd fd(::memfd_create("lockstep-spawn-report", MFD_CLOEXEC));
    if (!fd) throw memory_file_error("making a memory file for a rank's report", errno);
    return SpawnReport(std::move(fd));
  }
  // In the copy: takes over the inherited descriptor.
  static SpawnReport inherited(int fd) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw system_error("taking over the report file from spawn()", errno);
    return SpawnReport(UniqueFd(fd));
  }

  int fd() const { return fd_.get(); }
  void write_reached() const {
    if (::pwrite(fd_.get(), &kReached, 1, 0) != 1) throw system_error("writing the report to spawn()", errno);
  }
  // What cannot be written is lost: the process is about to end. Keeps at most 64 KiB of the text.
  void write_raised(const std::exception_ptr& exception) const noexcept {
    char kind = kRaised;
    try {
      try {
        std::rethrow_exception(exception);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::peer_lost) kind = kLostAPeer;
      } catch (...) {  // of no matter here
      }
      const std::string text = text_of_exception(exception).substr(0, kMaxTextBytes);
      [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), 1);
    } catch (...) {  // no memory left for the text; that there was an exception is told below
    }
    [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), &kind, 1, 0);
  }
  Content read() const {
    std::string bytes(1 + kMaxTextBytes, '\0');
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return {};
    const char kind = bytes[0];
    return {.reached = true,
            .raised = kind != kReached,
            .lost_a_peer = kind == kLostAPeer,
            .what = bytes.substr(1, static_cast<std::size_t>(got) - 1)};
  }

 private:
  explicit SpawnReport(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// The same name in the parent and in the copies, which make the same calls before.
std::string next_call(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::lock_guard lock(mutex);
  return fmt::format("{}#{}", name, ++calls[name]);
}

int required_number(const char* name) {
  if (const auto number = EnvironmentReader().number(name)) return *number;
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is set, which only spawn() sets, but {} is not; unset {}",
                                                       kCallVariable, name, kCallVariable));
}

[[noreturn]] void run_worker(const std::function<void(int rank)>& worker, bool line_by_line) {
  const int rank = required_number("RANK");
  const SpawnReport report = SpawnReport::inherited(required_number(kReportVariable));
  // A spawn() inside the worker starts a new job.
  ::unsetenv(kCallVariable);
  ::unsetenv(kReportVariable);
  if (line_by_line) buffer_output_by_line();
  report.write_reached();
  try {
    worker(rank);
  } catch (...) {
    report.write_raised(std::current_exception());
    std::cout.flush();
    std::fflush(nullptr);
    // Not exit(): a static destructor that waits for a peer would hide the failure.
    ::_exit(1);
  }
  std::exit(0);
}

Failure judge(const Attempt& attempt, const SpawnReport& report, const std::string& name, int rank,
              const ExitStatus& status) {
  Failure failure = attempt.judge(rank, status);
  const SpawnReport::Content content = report.read();
  if (content.raised) {
    failure.text = "raised: " + content.what;
    if (content.lost_a_peer) failure.fault = Fault::consequence;
  } else if (!content.reached) {
    failure.text = fmt::format(
        "{} before it reached spawn(\"{}\"): the copies of the program must take the same path to that call "
        "as the process that started them",
        describe(status), name);
  }
  return failure;
}

// The signal's disposition is that of before spawn(): the default action ends this process.
[[noreturn]] void pass_on(int signal) {
  std::cout.flush();
  std::fflush(nullptr);
  ::raise(signal);
  throw Error(ErrorKind::aborted, fmt::format("spawn() was stopped by {}", signal_name(signal)));
}

// Set up: of TreeOptions, what tells the ranks' pids, and what ends them.
void supervise(const std::vector<std::string>& arguments, const std::string& call, const SpawnOptions& options,
               const TreeOptions& set_up) {
  const int ranks = options.nprocs == 0 ? available_cores() : options.nprocs;
  if (ranks < 0) throw Error(ErrorKind::invalid_argument, fmt::format("spawn(): nprocs is {}; give 0 or more", ranks));
  if (options.threads_per_rank < 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("spawn(): threads_per_rank is {}; give 0 or more", options.threads_per_rank));
  }
  const LocalJob job({.ranks = ranks, .threads_per_rank = options.threads_per_rank});
  const JobStore store("localhost", job.token(), job.id(), ranks, 0);
  const Attempt attempt(
      job, {.world_size = ranks, .store = store.endpoint(), .master_addr = store.host(), .master_port = free_port()});
  std::vector<SpawnReport> reports;
  for (int rank = 0; rank < ranks; ++rank) reports.push_back(SpawnReport::create());
  std::vector<Command> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    const int report_fd = reports[static_cast<std::size_t>(rank)].fd();
    Command command = attempt.command(rank, "/proc/self/exe", arguments);
    command.environment.push_back(fmt::format("{}={}", kCallVariable, call));
    command.environment.push_back(fmt::format("{}={}", kReportVariable, report_fd));
    command.keep_fds.push_back(report_fd);
    commands.push_back(std::move(command));
  }
  std::optional<RankOutput> output;
  if (options.prefix_output) output.emplace(RankOutputOptions{.prefix = PrefixMode::always}, ranks);
  TreeOptions tree = set_up;
  tree.grace = options.grace;
  tree.stop_grace = options.grace;
  tree.job_id = job.id();
  tree.output = output ? &*output : nullptr;
  tree.judge = [&attempt, &reports, &options](int rank, const ExitStatus& status) {
    return judge(attempt, reports[static_cast<std::size_t>(rank)], options.name, rank, status);
  };
  const Outcome outcome = run_process_tree(std::move(commands), tree);
  if (const std::string line = attempt.recordings().save(outcome); !line.empty()) log_info(line);
  // A request to stop goes on to this process, even if a rank fails while it stops.
  const RankEnd* first = outcome.first_failure();
  if (first != nullptr && first->own_end != OwnEnd::after_request) {
    const ExitStatus& status = first->status;
    throw ProcessFailed(describe_failure(*first), first->rank, first->pid, status.signal != 0 ? -1 : status.code,
                        status.signal);
  }
  if (outcome.stop_signal != 0) pass_on(outcome.stop_signal);
}

}  // namespace

ProcessFailed::ProcessFailed(const std::string& message, int rank, int pid, int exit_code, int signal)
    : Error(ErrorKind::peer_lost, message, {.rank = rank}), pid_(pid), exit_code_(exit_code), signal_(signal) {}

struct SpawnHandle::State {
  UniqueFd stop;  // an eventfd
  std::vector<int> pids;
  std::promise<void> started;
  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  bool has_ended = false;
  std::exception_ptr error;
  std::jthread supervisor;  // last: it uses all of the above
};

SpawnHandle::SpawnHandle(std::unique_ptr<State> state) : state_(std::move(state)) {}
SpawnHandle::SpawnHandle() = default;
SpawnHandle::SpawnHandle(SpawnHandle&&) noexcept = default;
SpawnHandle& SpawnHandle::operator=(SpawnHandle&& other) noexcept {
  const SpawnHandle before(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}
SpawnHandle::~SpawnHandle() { terminate(); }  // the supervisor's destructor waits

const std::vector<int>& SpawnHandle::pids() const {
  static const std::vector<int> none;
  return state_ == nullptr ? none : state_->pids;
}

bool SpawnHandle::join(Deadline deadline) const {
  if (state_ == nullptr) return true;
  std::unique_lock lock(state_->mutex);
  if (!wait_until(state_->changed, lock, deadline, [this] { return state_->has_ended; })) return false;
  if (state_->error) std::rethrow_exception(state_->error);
  return true;
}

void SpawnHandle::terminate() const {
  const std::uint64_t one = 1;
  if (state_ != nullptr) [[maybe_unused]]
    const ssize_t written = ::write(state_->stop.get(), &one, sizeof one);
}

SpawnHandle spawn_async(int argc, char** argv, const std::function<void(int rank)>& worker,
                        const SpawnOptions& options) {
  const std::string call = next_call(options.name);
  const std::string wanted = EnvironmentReader().text(kCallVariable).value_or("");
  if (wanted == call) run_worker(worker, options.prefix_output);
  if (!wanted.empty()) return {};
  occupy_standard_descriptors();
  std::cout.flush();
  std::fflush(nullptr);
  auto state = std::make_unique<SpawnHandle::State>();
  state->stop.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->stop) throw system_error("making a descriptor for ending ranks", errno);
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  const auto supervise_ranks = [arguments = std::vector<std::string>(argv, argv + argc), call, options, mask,
                                state = state.get()] {
    std::exception_ptr error;
    TreeOptions set_up;
    set_up.mask = &mask;
    set_up.stop_fd = state->stop.get();
    set_up.started = [&](const std::vector<int>& pids) {
      state->pids = pids;
      state->started.set_value();
    };
    try {
      supervise(arguments, call, options, set_up);
    } catch (...) {
      error = std::current_exception();
    }
    if (state->pids.empty()) return state->started.set_exception(error);
    const std::lock_guard lock(state->mutex);
    state->error = error;
    state->has_ended = true;
    state->changed.notify_all();
  };
  {
    // It takes those that it passes on to ranks.
    const SignalBlock block = SignalBlock::of_new_thread({SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP});
    state->supervisor = std::jthread(supervise_ranks);
  }
  state->started.get_future().get();
  return SpawnHandle(std::move(state));
}

void spawn(int argc, char** argv, const std::function<void(int rank)>& worker, const SpawnOptions& options) {
  spawn_async(argc, argv, worker, options).join();
}

}  // namespace lockstep
