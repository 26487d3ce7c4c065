#include "lockstep/base/stop_signal.h"

#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

// What the first signal was, when it came, and to which process: a forked child inherits the word and must not take it
// for its own. One word, so that handlers in several threads agree. Milliseconds wrap after a year.
struct StopRequest {
  static constexpr int kSignalBits = 7, kTimeBits = 35;
  static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << kTimeBits) - 1;

  pid_t process = 0;  // at most 22 bits
  int signal = 0;
  std::uint64_t time_ms = 0;

  static StopRequest of(std::uint64_t word) {
    return {static_cast<pid_t>(word >> (kSignalBits + kTimeBits)),
            static_cast<int>(word >> kTimeBits & ((1U << kSignalBits) - 1)), word & kTimeMask};
  }
  std::uint64_t word() const {
    return static_cast<std::uint64_t>(process) << (kSignalBits + kTimeBits) |
           static_cast<std::uint64_t>(signal) << kTimeBits | time_ms;
  }
};

std::atomic<std::uint64_t> g_stop_request{0};
std::atomic<pid_t> g_catching_process{0};  // that installed the handlers
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free,
              "used in a signal handler");

std::mutex g_catchers_mutex;
std::array<int, NSIG> g_catchers{};  // StopSignals that catch it; guarded by g_catchers_mutex

// When an exception ended the last StopSignals; 0 while there is one, or after a normal end.
std::atomic<std::uint64_t> g_unwinding_since_ms{0};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "used in a signal handler");

std::uint64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec * 1000 + now.tv_nsec / 1'000'000);
}

// Whether a program that has caught the exception goes on, without anyone that asks for requests.
bool is_left_over() noexcept {
  constexpr auto kLimitMs = std::chrono::milliseconds(internal::StopSignals::kUnwinding).count();
  const std::uint64_t since = g_unwinding_since_ms.load();
  return since != 0 && now_ms() - since > static_cast<std::uint64_t>(kLimitMs);
}

// Whether it is the first, or the same once more.
bool note_stop_signal(int signal) noexcept {
  const std::uint64_t time_ms = now_ms() & StopRequest::kTimeMask;
  const StopRequest mine{::getpid(), signal, time_ms};
  std::uint64_t word = g_stop_request.load();
  while (StopRequest::of(word).process != mine.process) {
    if (g_stop_request.compare_exchange_weak(word, mine.word())) return true;
  }
  constexpr auto kSameMs = std::chrono::milliseconds(internal::StopSignals::kSameRequest).count();
  // Another thread's may have come later than this one was looked at: then the difference is huge, as a negative one.
  const std::uint64_t passed = (time_ms - StopRequest::of(word).time_ms) & StopRequest::kTimeMask;
  return passed < static_cast<std::uint64_t>(kSameMs) || passed > StopRequest::kTimeMask / 2;
}

void on_stop_signal(int signal) {
  const int saved_errno = errno;
  if (::getpid() != g_catching_process.load() || is_left_over() || !note_stop_signal(signal)) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
    ::raise(signal);  // blocked until this handler returns
  }
  errno = saved_errno;
}

void require_catchable(int signal) {
  struct sigaction action {};
  if (signal > 0 && signal != SIGKILL && signal != SIGSTOP && ::sigaction(signal, nullptr, &action) == 0) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("stop_signals: {} is not a signal that a process can catch; use, for example, SIGTERM, "
                          "SIGINT, SIGHUP or SIGUSR1",
                          signal));
}

// Whether it is caught now.
bool catch_unless_handled(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  if (action.sa_handler == on_stop_signal) return true;
  if (action.sa_handler != SIG_DFL) return false;
  action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  return ::sigaction(signal, &action, nullptr) == 0;
}

}  // namespace

void request_stop(int signal) noexcept { note_stop_signal(signal); }

int stop_signal() noexcept {
  const StopRequest request = StopRequest::of(g_stop_request.load());
  return request.process == ::getpid() ? request.signal : 0;
}

namespace internal {

StopSignals::StopSignals(const std::vector<int>& signals) : exceptions_(std::uncaught_exceptions()) {
  for (const int signal : signals) require_catchable(signal);
  caught_.reserve(signals.size());
  const std::lock_guard lock(g_catchers_mutex);
  if (const pid_t process = ::getpid(); g_catching_process.exchange(process) != process) g_catchers = {};
  g_unwinding_since_ms.store(0);
  for (const int signal : signals) {
    if (!catch_unless_handled(signal)) continue;
    ++g_catchers[static_cast<std::size_t>(signal)];
    caught_.push_back(signal);
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(g_catchers_mutex);
  if (g_catching_process.load() != ::getpid() || stop_signal() != 0) return;
  const bool unwinds = std::uncaught_exceptions() > exceptions_;
  for (const int signal : caught_) {
    int& catchers = g_catchers[static_cast<std::size_t>(signal)];
    struct sigaction action {};
    if (catchers == 0 || --catchers > 0 || ::sigaction(signal, nullptr, &action) != 0) continue;
    if (unwinds) {
      g_unwinding_since_ms.store(now_ms());
      continue;
    }
    if (action.sa_handler != on_stop_signal) continue;  // the program has put its own in its place
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
}

void forget_stop_request() noexcept { g_stop_request.store(0); }

}  // namespace internal
}  // namespace lockstep
