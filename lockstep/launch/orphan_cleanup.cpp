#include "lockstep/launch/orphan_cleanup.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace lockstep {
namespace {

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

bool kill_if_of_job(int proc, const char* name, const char* needle, std::size_t needle_bytes) noexcept {
  const int pid = parse_pid(name);
  if (pid <= 0 || pid == ::getpid()) return false;
  // Opened before the environment is read: if the number passes to another process meanwhile, the signal goes nowhere.
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) return false;
  char path[32] = {};
  ::strncat(path, name, 16);
  ::strcat(path, "/environ");
  const bool found = file_contains(proc, path, needle, needle_bytes);
  if (found) ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
  ::close(pidfd);
  return found;
}

// How many it found.
int sweep_once(int proc, const char* needle, std::size_t needle_bytes) noexcept {
  alignas(DirectoryRecord) char records[16384];
  int found = 0;
  while (true) {
    const long got = ::syscall(SYS_getdents64, proc, records, sizeof records);
    if (got <= 0) return found;
    for (long at = 0; at < got;) {
      const auto* record = reinterpret_cast<const DirectoryRecord*>(records + at);
      found += kill_if_of_job(proc, record->name, needle, needle_bytes) ? 1 : 0;
      at += record->length_bytes;
    }
  }
}

}  // namespace

int kill_job_processes(const char* job_id) noexcept {
  constexpr int kMaxSweeps = 500;
  char needle[128] = "LOCKSTEP_JOB_ID=";
  if (*job_id == '\0' || std::strlen(job_id) > 64) return 0;
  ::strcat(needle, job_id);
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return 0;
  const int found = sweep_once(proc, needle, std::strlen(needle));
  // Again, because a process may have forked while the list was read.
  for (int sweep = 1, left = found; left > 0 && sweep < kMaxSweeps; ++sweep) {
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
    ::lseek(proc, 0, SEEK_SET);
    left = sweep_once(proc, needle, std::strlen(needle));
  }
  ::close(proc);
  return found;
}

}  // namespace lockstep
