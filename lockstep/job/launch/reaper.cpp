#include "lockstep/job/launch/reaper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/launch/job_processes.h"

namespace lockstep::internal {
namespace {

constexpr int kMaxGroups = 4096;

constexpr unsigned kToProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, which libc does not know yet

// A rank's process group. The descriptor stands for the rank's process and its group, even after both have ended and
// the pid is reused.
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
  // Before Linux 6.9: by pid, while the process exists and keeps the pid from being reused.
  if (::syscall(SYS_pidfd_send_signal, group.pidfd, 0, nullptr, 0) == 0) ::kill(-group.pid, SIGKILL);
}

// False at end of file. Records are whole: writes of this size to a pipe are atomic.
bool read_record(int fd, Groups& groups) noexcept {
  pid_t record = 0;
  const ssize_t got = ::read(fd, &record, sizeof record);
  if (got == sizeof record) note(groups, record);
  return got == sizeof record || (got < 0 && errno == EINTR);
}

// Runs in the forked child of a program that may have many threads: system calls only. All signals are blocked, and it
// has a session of its own, so that signals to the launcher's group do not end it.
[[noreturn]] void reaper_main(int launcher_pidfd, int reader, int ready, const char* job_id) noexcept {
  const pid_t launcher_group = ::getpgrp();
  ::setsid();
  ::prctl(PR_SET_NAME, "lockstep-reaper");
  if (::write(ready, "", 1) != 1) ::_exit(1);
  // It must not keep any pipe, socket or directory of the program open.
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
  kill_job_processes(job_id, launcher_group);
  ::_exit(0);
}

}  // namespace

Reaper::Reaper(const std::string& job_id) {
  Pipe records = make_pipe("the reaper process");
  Pipe ready = make_pipe("the reaper process");
  writer_ = std::move(records.writer);
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) throw system_error("pidfd_open (Lockstep needs Linux 5.9 or newer)", errno);
  const SignalBlock block;
  // _Fork, not fork: pthread_atfork handlers of libraries must not run in this child.
  pid_ = ::_Fork();
  if (pid_ == 0) reaper_main(self.get(), records.reader.get(), ready.writer.get(), job_id.c_str());
  if (pid_ < 0) throw system_error("starting the reaper process", errno);
  // Until it has its session, what kills the launcher's group kills it too, and ranks would be left.
  ready.writer.reset();
  char byte = 0;
  ssize_t got = 0;
  while ((got = ::read(ready.reader.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got == 1) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  throw Error(ErrorKind::internal, "the reaper process ended at once");
}

Reaper::~Reaper() {
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Reaper::forget(int pid) noexcept {
  const pid_t record = -pid;
  [[maybe_unused]] const ssize_t written = ::write(writer_.get(), &record, sizeof record);
}

}  // namespace lockstep::internal
