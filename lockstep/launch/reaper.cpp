#include "lockstep/launch/reaper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lockstep/base/error.h"
#include "lockstep/launch/orphan_cleanup.h"

namespace lockstep {
namespace {

constexpr int kMaxGroups = 4096;

constexpr unsigned kToProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, which libc does not know yet

// A process group of a rank. The descriptor stands for the rank's process, and through it for its group, also when both
// have ended and the number belongs to others.
struct Group {
  pid_t pid;
  int pidfd;
};

struct Groups {
  Group list[kMaxGroups];
  int count = 0;
};

void note(Groups& groups, pid_t record) noexcept {
  if (record > 0 && groups.count < kMaxGroups) {
    groups.list[groups.count++] = {record, static_cast<int>(::syscall(SYS_pidfd_open, record, 0))};
  }
  for (int i = 0; record < 0 && i < groups.count; ++i) {
    if (groups.list[i].pid != -record) continue;
    ::close(groups.list[i].pidfd);
    groups.list[i--] = groups.list[--groups.count];
  }
}

void kill_group(const Group& group) noexcept {
  if (::syscall(SYS_pidfd_send_signal, group.pidfd, SIGKILL, nullptr, kToProcessGroup) == 0 || errno == ESRCH) return;
  // Before Linux 6.9: by number, while the process that has it is there to keep others from getting it.
  if (::syscall(SYS_pidfd_send_signal, group.pidfd, 0, nullptr, 0) == 0) ::kill(-group.pid, SIGKILL);
}

// False at end of file. Records are whole: writes of this size to a pipe are atomic.
bool read_record(int fd, Groups& groups) noexcept {
  pid_t record = 0;
  const ssize_t got = ::read(fd, &record, sizeof record);
  if (got == sizeof record) note(groups, record);
  return got == sizeof record || (got < 0 && errno == EINTR);
}

// Runs in the forked child of a program that may have had many threads: system calls only. Every signal that can be
// blocked is, and it stands in a session of its own, so that what ends the launcher's group does not end it.
[[noreturn]] void guard_main(int launcher_pidfd, int reader, const char* job_id) noexcept {
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-guard");
  // It must not keep anybody's pipe, socket or directory open.
  if (::dup2(launcher_pidfd, 0) != 0 || ::dup2(reader, 1) != 1) ::_exit(1);
  ::close_range(2, ~0U, 0);
  if (::chdir("/") != 0) ::_exit(1);

  static Groups groups;
  pollfd fds[2] = {{0, POLLIN, 0}, {1, POLLIN, 0}};
  while ((fds[0].revents & POLLIN) == 0) {
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0 && !read_record(1, groups)) fds[1].fd = -1;
  }
  ::fcntl(1, F_SETFL, O_NONBLOCK);
  while (fds[1].fd >= 0 && read_record(1, groups)) {
  }
  for (int i = 0; i < groups.count; ++i) kill_group(groups.list[i]);
  kill_job_processes(job_id);
  ::_exit(0);
}

}  // namespace

Guard::Guard(const std::string& job_id) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("making a pipe for the guard process", errno);
  const UniqueFd reader(ends[0]);
  writer_.reset(ends[1]);
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) throw system_error("pidfd_open (Lockstep needs Linux 5.9 or newer)", errno);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // _Fork, not fork: the handlers that libraries register with pthread_atfork are not for a child like this.
  pid_ = ::_Fork();
  if (pid_ == 0) guard_main(self.get(), reader.get(), job_id.c_str());
  const int saved_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) throw system_error("starting the guard process", saved_errno);
}

Guard::~Guard() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::forget(int pid) noexcept {
  const pid_t record = -pid;
  [[maybe_unused]] const ssize_t written = ::write(writer_.get(), &record, sizeof record);
}

}  // namespace lockstep
