#include "lockstep/job/launch/event_hook.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/launch/launcher_line.h"
#include "lockstep/job/launch/line_splitter.h"
#include "lockstep/job/launch/own_children.h"

namespace lockstep::internal {
namespace {

UniqueFd make_event_fd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw system_error("making a descriptor for events", errno);
  return fd;
}

void raise_event(const UniqueFd& fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd.get(), &one, sizeof one);
}

// One run of the program.
class HookRun {
 public:
  HookRun(const std::string& path, std::string event, std::string text)
      : event_(std::move(event)), unsent_(std::move(text)) {
    Pipe input = make_pipe("the program of --on-event");
    Pipe output = make_pipe("the program of --on-event");
    Command command{.path = path, .argv = {path}, .environment = {}, .keep_fds = {}};
    for (char** entry = environ; *entry != nullptr; ++entry) command.environment.emplace_back(*entry);
    command.stdin_fd = input.reader.get();
    command.stdout_fd = command.stderr_fd = output.writer.get();
    sigset_t mask{};
    process_.emplace(command, mask);
    input_ = std::move(input.writer);
    output_ = std::move(output.reader);
  }

  // Until it has ended, or was killed: at the deadline, or when `give_up` can be read.
  void wait(Deadline deadline, int give_up) {
    std::optional<ExitStatus> status;
    bool killed = false;
    while (!(status = process_->try_reap())) {
      std::array<pollfd, 4> set{{{process_->pidfd(), POLLIN, 0},
                                 {output_.get(), POLLIN, 0},
                                 {unsent_.empty() ? -1 : input_.get(), POLLOUT, 0},
                                 {killed ? -1 : give_up, POLLIN, 0}}};
      ::poll(set.data(), set.size(), killed ? -1 : deadline.poll_timeout_ms());
      if (set[1].revents != 0) read_some();
      if (set[2].revents != 0) write_some();
      if (!killed && (deadline.expired() || set[3].revents != 0)) {
        process_->kill();
        killed = true;
      }
    }
    drain();
    lines_.finish([](std::string_view line) { show(line); });
    if (killed) {
      warn(fmt::format("did not finish in time for event '{}' and was killed", event_));
    } else if (!status->ok()) {
      warn(fmt::format("{} for event '{}'", describe(*status), event_));
    }
  }

  static void warn(const std::string& text) {
    say_on_standard_error("the program of --on-event " + text, LogLevel::warning);
  }

 private:
  static void show(std::string_view line) { say_on_standard_error(fmt::format("on-event: {}", line)); }

  // Whoever has it open, may be a child that goes on: its end is not waited for.
  void read_some() {
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(output_.get(), buffer.data(), buffer.size());
    if (got > 0) {
      lines_.feed({buffer.data(), static_cast<std::size_t>(got)}, [](std::string_view line) { show(line); });
    } else if (got == 0) {
      output_.reset();
    }
  }

  void drain() {
    pollfd ready{output_.get(), POLLIN, 0};
    for (int i = 0; i < kMostReads && output_ && ::poll(&ready, 1, 0) > 0; ++i) read_some();
  }

  // As much as poll() says a pipe takes in one piece.
  void write_some() {
    const ssize_t written = ::write(input_.get(), unsent_.data(), std::min<std::size_t>(unsent_.size(), PIPE_BUF));
    if (written < 0 && errno != EAGAIN && errno != EINTR) unsent_.clear();  // it does not read
    if (written > 0) unsent_.erase(0, static_cast<std::size_t>(written));
    if (unsent_.empty()) input_.reset();
  }

  static constexpr int kMostReads = 64;

  const std::string event_;
  std::string unsent_;
  std::optional<OwnChild> process_;
  UniqueFd input_;
  UniqueFd output_;
  LineSplitter lines_;
};

}  // namespace

struct EventHook::State {
  struct WaitingEvent {
    const char* name;
    std::string text;
  };

  std::string path;
  Duration limit;
  UniqueFd posted = make_event_fd();   // read by the thread
  UniqueFd give_up = make_event_fd();  // likewise; stays readable
  UniqueFd done = make_event_fd();     // readable while nothing is left
  std::mutex mutex;
  // State below is protected by mutex.
  std::deque<WaitingEvent> waiting;
  std::size_t left_out = 0;
  bool over = false;
  std::jthread thread;  // last: it uses all of the above

  std::optional<WaitingEvent> take() {
    const std::lock_guard lock(mutex);
    if (waiting.empty()) {
      if (over) raise_event(done);
      return std::nullopt;
    }
    WaitingEvent event = std::move(waiting.front());
    waiting.pop_front();
    return event;
  }

  bool is_given_up() const {
    pollfd set{give_up.get(), POLLIN, 0};
    return ::poll(&set, 1, 0) > 0;
  }

  void work() {
    while (!is_given_up()) {
      std::optional<WaitingEvent> event = take();
      if (!event) {
        std::array<pollfd, 2> set{{{posted.get(), POLLIN, 0}, {give_up.get(), POLLIN, 0}}};
        ::poll(set.data(), set.size(), -1);
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(posted.get(), &count, sizeof count);
        continue;
      }
      try {
        HookRun(path, event->name, event->text).wait(Deadline::after(limit), give_up.get());
      } catch (const std::exception& error) {
        HookRun::warn(fmt::format("was not run for event '{}': {}", event->name, error.what()));
      }
    }
  }
};

EventHook::EventHook(std::string path, Duration limit) {
  if (path.empty()) return;
  state_ = std::make_unique<State>();
  state_->path = std::move(path);
  state_->limit = limit;
  const SignalBlock of_thread;  // SIGPIPE, too: a program need not read
  state_->thread = std::jthread([state = state_.get()] { state->work(); });
}

EventHook::~EventHook() {
  if (state_ != nullptr) raise_event(state_->give_up);
}

void EventHook::post(const JobEvent& event) {
  if (state_ == nullptr) return;
  {
    const std::lock_guard lock(state_->mutex);
    if (event.kind != JobEvent::Kind::end && state_->waiting.size() >= kMostWaiting) {
      ++state_->left_out;
      return;
    }
    state_->waiting.push_back({name_of(event.kind), json_of(event)});
  }
  raise_event(state_->posted);
}

void EventHook::finish(bool was_asked, int stop_fd) {
  if (state_ == nullptr) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  raise_event(state_->posted);
  const Deadline deadline = Deadline::after(was_asked ? std::min(kLimitOfStopped, state_->limit) : state_->limit);
  std::array<pollfd, 2> set{{{state_->done.get(), POLLIN, 0}, {stop_fd, POLLIN, 0}}};
  while (::poll(set.data(), set.size(), deadline.poll_timeout_ms()) < 0 && errno == EINTR) {
  }
  raise_event(state_->give_up);
  state_->thread.join();
  const std::size_t left = state_->waiting.size() + state_->left_out;
  if (left > 0) {
    HookRun::warn(fmt::format("took too long: {} event{} skipped", left, left == 1 ? " was" : "s were"));
  }
}

}  // namespace lockstep::internal
