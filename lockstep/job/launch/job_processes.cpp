#include "lockstep/job/launch/job_processes.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace lockstep::internal {
namespace {

constexpr int kMaxPasses = 500;
constexpr int kEmptyPasses = 2;  // that end the search: a process that just executes another program shows nothing

// The kernel's directory record, which libc does not declare.
struct DirectoryRecord {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length_bytes;
  unsigned char type;
  char name[];
};

// 0 for a name that is not a number.
int parse_pid(const char* name) noexcept {
  int pid = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return 0;
    pid = pid * 10 + (*name - '0');
  }
  return pid;
}

bool file_contains(int directory, const char* path, const char* needle, std::size_t needle_bytes) noexcept {
  const int fd = ::openat(directory, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char buffer[8192];
  std::size_t held = 0;
  bool found = false;
  while (!found) {
    const ssize_t got = ::read(fd, buffer + held, sizeof buffer - held);
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    found = ::memmem(buffer, held, needle, needle_bytes) != nullptr;
    // A match may lie across two reads.
    const std::size_t keep = held < needle_bytes ? held : needle_bytes - 1;
    std::memmove(buffer, buffer + held - keep, keep);
    held = keep;
  }
  ::close(fd);
  return found;
}

struct Search {
  int proc;  // the directory
  char needle[128] = "LOCKSTEP_JOB_ID=";
  std::size_t needle_bytes = 0;
  pid_t spared_group;
  Reach reach = Reach::process;
};

bool kill_if_of_job(const Search& search, const char* name) noexcept {
  const int pid = parse_pid(name);
  if (pid <= 0 || pid == ::getpid()) return false;
  // Opened before the environment is read: if the number passes to another process meanwhile, the signal goes nowhere.
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) return false;
  char path[32] = {};
  ::strncat(path, name, 16);
  ::strcat(path, "/environ");
  const bool found = file_contains(search.proc, path, search.needle, search.needle_bytes);
  if (found) kill_found(pid, pidfd, search.reach, search.spared_group);
  ::close(pidfd);
  return found;
}

// Returns how many it found.
int kill_by_environment(const Search& search) noexcept {
  alignas(DirectoryRecord) char records[16384];
  int found = 0;
  ::lseek(search.proc, 0, SEEK_SET);
  while (true) {
    const long got = ::syscall(SYS_getdents64, search.proc, records, sizeof records);
    if (got <= 0) return found;
    for (long at = 0; at < got;) {
      const auto* record = reinterpret_cast<const DirectoryRecord*>(records + at);
      found += kill_if_of_job(search, record->name) ? 1 : 0;
      at += record->length_bytes;
    }
  }
}

}  // namespace

void kill_found(int pid, int pidfd, Reach reach, pid_t spared_group) noexcept {
  const pid_t group = reach == Reach::group ? ::getpgid(pid) : -1;
  // The process is still there, so the number is that of its group. That of 1 would be all processes.
  const bool is_there = ::syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) == 0;
  if (is_there && group > 1 && group != spared_group && group != ::getpgrp()) ::kill(-group, SIGKILL);
  ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

int kill_job_processes(const char* job_id, pid_t spared_group, OtherSearch* other) noexcept {
  if (*job_id == '\0' || std::strlen(job_id) > 64) return 0;
  Search search{.proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), .spared_group = spared_group};
  if (search.proc < 0) return 0;
  ::strcat(search.needle, job_id);
  search.needle_bytes = std::strlen(search.needle);
  int found_first = 0;
  for (int pass = 0, empty = 0; empty < kEmptyPasses && pass < kMaxPasses; ++pass) {
    const timespec pause{0, 2'000'000};
    if (pass > 0) ::nanosleep(&pause, nullptr);
    // What is still found may fork faster than it is killed one by one.
    search.reach = pass == 0 ? Reach::process : Reach::group;
    OtherSearch::Found found{.killed = kill_by_environment(search)};
    if (other != nullptr) {
      const OtherSearch::Found more = other->kill_once(search.reach);
      found = {found.killed + more.killed, more.look_again};
    }
    if (pass == 0) found_first = found.killed;
    empty = found.killed == 0 && !found.look_again ? empty + 1 : 0;
  }
  ::close(search.proc);
  return found_first;
}

}  // namespace lockstep::internal
