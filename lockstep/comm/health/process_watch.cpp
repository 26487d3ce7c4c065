#include "lockstep/comm/health/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "lockstep/base/private_fd.h"

namespace lockstep::internal {
namespace {

// As ps(1) shows it.
ProcessState state_of(char letter) {
  switch (letter) {
    case 'T': return ProcessState::stopped;
    case 't': return ProcessState::traced;
    case 'D': return ProcessState::uninterruptible;
    case 'X':
    case 'Z': return ProcessState::ended;
    default: return ProcessState::alive;
  }
}

}  // namespace

std::string_view to_string(ProcessState state) {
  switch (state) {
    case ProcessState::unknown: return "";
    case ProcessState::alive: return "alive";
    case ProcessState::stopped: return "stopped (by SIGSTOP or the like)";
    case ProcessState::traced: return "stopped by a debugger";
    case ProcessState::uninterruptible: return "alive, in uninterruptible sleep (disk, or a frozen container)";
    case ProcessState::ended: return "ended";
  }
  return "";
}

ProcessStat process_stat(int pid) {
  ProcessStat found;
  const UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    // Without /proc itself nothing is known.
    found.is_missing = errno == ENOENT && ::access("/proc/self/stat", R_OK) == 0;
    return found;
  }
  char text[1024];
  ssize_t bytes = 0;
  do {
    bytes = ::read(fd.get(), text, sizeof text - 1);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) {
    found.is_missing = bytes < 0 && errno == ESRCH;  // it ended in between
    return found;
  }
  // "pid (name) state ppid ... start ...": the name may hold anything; the start is the 19th after the state.
  const std::string_view view(text, static_cast<std::size_t>(bytes));
  const std::size_t end = view.rfind(") ");
  if (end == std::string_view::npos) return found;
  text[bytes] = '\0';
  char state = 0;
  unsigned long long start = 0;
  const int read =
      std::sscanf(text + end + 2, "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &state, &start);
  if (read >= 1) found.state = state_of(state);
  if (read == 2) found.start = start;
  return found;
}

ProcessWatch::ProcessWatch(int pid, std::uint64_t start) : pid_(pid), start_(start) {
  pidfd_ = PrivateFd::open([pid] { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); });
  if (!pidfd_ && errno == ESRCH) {
    is_over_ = true;
    return;
  }
  const ProcessStat now = process_stat(pid);
  if (start_ == 0) start_ = now.start;
  is_over_ = now.is_missing || (now.start != 0 && now.start != start_);
}

bool ProcessWatch::has_ended() const {
  if (pid_ == 0 || is_over_) return is_over_;
  pollfd watched{pidfd_.get(), POLLIN, 0};
  if (pidfd_ && ::poll(&watched, 1, 0) <= 0) return false;
  // A program may have closed the descriptor, or put another in its place: then it tells nothing.
  const ProcessStat now = process_stat(pid_);
  if (now.state == ProcessState::unknown && !now.is_missing) return (watched.revents & POLLIN) != 0;  // without /proc
  return now.is_missing || now.state == ProcessState::ended || (now.start != 0 && now.start != start_);
}

}  // namespace lockstep::internal
