#include "lockstep/job/launch/signal_relay.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "lockstep/base/error.h"
#include "lockstep/base/pipe.h"

namespace lockstep::internal {
namespace {

std::atomic<int> g_writer_fd{-1};
std::atomic<int> g_handlers{0};  // that run now, in any thread
std::atomic<pid_t> g_relaying_process{0};
// As the program had them, for its forked children: written before the handler is installed.
std::array<struct sigaction, NSIG> g_before{};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free,
              "used in a signal handler");

void on_signal(int signal) {
  const int saved_errno = errno;
  if (::getpid() != g_relaying_process.load()) {  // a forked child: the pipe is its parent's
    ::sigaction(signal, &g_before[static_cast<std::size_t>(signal)], nullptr);
    ::raise(signal);  // blocked until this handler returns
    errno = saved_errno;
    return;
  }
  const auto byte = static_cast<unsigned char>(signal);
  ++g_handlers;
  // A full pipe loses nothing that matters: it holds thousands of signals already.
  if (const int fd = g_writer_fd.load(); fd >= 0) [[maybe_unused]]
    const ssize_t written = ::write(fd, &byte, 1);
  --g_handlers;
  errno = saved_errno;
}

}  // namespace

const std::vector<int>& SignalRelay::stop_signals() {
  static const std::vector<int> signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  return signals;
}

SignalRelay::SignalRelay(const std::vector<int>& asking_to_stop) {
  Pipe pipe = make_pipe("signals", PipeMode::non_blocking);
  reader_ = std::move(pipe.reader);
  writer_ = std::move(pipe.writer);
  std::vector<int> signals = asking_to_stop;
  signals.insert(signals.end(), {SIGTSTP, SIGCHLD});
  before_.reserve(signals.size());
  int nobody = -1;
  if (!g_writer_fd.compare_exchange_strong(nobody, writer_.get())) {
    throw Error(ErrorKind::invalid_argument,
                "this process is already supervising ranks; run one spawn() after another, not at the same time");
  }
  g_relaying_process.store(::getpid());
  for (const int signal : signals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    const bool ignored = action.sa_handler == SIG_IGN;
    if (ignored && signal != SIGCHLD) continue;
    before_.emplace_back(signal, action);
    g_before[static_cast<std::size_t>(signal)] = action;
    action = {};
    action.sa_handler = signal == SIGCHLD ? SIG_DFL : on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

SignalRelay::~SignalRelay() {
  for (const auto& [signal, action] : before_) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0) continue;
    // The program may have put its own in its place.
    if (now.sa_handler == (signal == SIGCHLD ? SIG_DFL : on_signal)) ::sigaction(signal, &action, nullptr);
  }
  g_writer_fd.store(-1);
  // A handler that has read the number must not write into a file that gets it next.
  while (g_handlers.load() != 0) ::sched_yield();
  while (const int signal = take()) {
    if (signal != SIGTSTP) ::raise(signal);
  }
}

int SignalRelay::take() {
  unsigned char byte = 0;
  return ::read(reader_.get(), &byte, 1) == 1 ? byte : 0;
}

}  // namespace lockstep::internal
