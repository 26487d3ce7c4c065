#include "lockstep/job/launch/child_process.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/job/launch/program_path.h"

namespace lockstep::internal {
namespace {

// Everything that the child needs, prepared before it exists: between vfork and exec it shares the parent's memory, so
// it may only make system calls.
struct ExecPlan {
  const char* path;
  char* const* argv;
  char* const* environment;
  std::span<const int> keep_fds;
  int stdio[3];
  int reaper_fd;
  int error_fd;
  pid_t parent;
  const sigset_t* mask;
  std::span<const unsigned long> cpu_mask;
  std::span<const unsigned long> memory_nodes;  // a mask
  int cgroup_fd;
};

[[noreturn]] void fail(const ExecPlan& plan, int saved_errno) {
  [[maybe_unused]] const ssize_t written = ::write(plan.error_fd, &saved_errno, sizeof saved_errno);
  ::_exit(127);
}

// System calls, since libc's functions are not safe here, and know 1,024 CPUs.
void place_child(const ExecPlan& plan) {
  if (!plan.cpu_mask.empty() &&
      ::syscall(SYS_sched_setaffinity, 0, plan.cpu_mask.size_bytes(), plan.cpu_mask.data()) != 0) {
    fail(plan, errno);
  }
  // Containers often forbid it. Then memory comes from where the rank runs, which is the same node if all goes well.
  if (!plan.memory_nodes.empty()) {
    const std::size_t bits = plan.memory_nodes.size_bytes() * 8;
    ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, plan.memory_nodes.data(), bits + 1);
  }
}

[[noreturn]] void run_child(const ExecPlan& plan) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail(plan, errno);
  // The parent may have died before the line above.
  if (::getppid() != plan.parent) ::_exit(127);
  if (::setpgid(0, 0) != 0) fail(plan, errno);
  if (plan.cgroup_fd >= 0 && ::write(plan.cgroup_fd, "0", 1) != 1) fail(plan, -errno);  // negative: not of the program
  for (int fd = 0; fd < 3; ++fd) {
    if (plan.stdio[fd] >= 0 && ::dup2(plan.stdio[fd], fd) < 0) fail(plan, errno);
  }
  for (const int fd : plan.keep_fds) {
    if (::fcntl(fd, F_SETFD, 0) != 0) fail(plan, errno);
  }
  place_child(plan);
  // No handler of the parent may run here once signals are unblocked; exec would reset them only later.
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN || action.sa_handler == SIG_DFL) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
  const pid_t self = ::getpid();
  if (plan.reaper_fd >= 0 && ::write(plan.reaper_fd, &self, sizeof self) != sizeof self) fail(plan, errno);
  ::sigprocmask(SIG_SETMASK, plan.mask, nullptr);
  ::execve(plan.path, plan.argv, plan.environment);
  fail(plan, errno);
}

// A mask with this bit alone; none for -1.
std::vector<unsigned long> mask_with(int bit) {
  if (bit < 0) return {};
  constexpr std::size_t kBits = sizeof(unsigned long) * 8;
  const auto number = static_cast<std::size_t>(bit);
  std::vector<unsigned long> mask(number / kBits + 1);
  mask.back() = 1UL << (number % kBits);
  return mask;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// Apart from start(), so that no local of the parent is live across vfork's second return.
[[gnu::noinline]] pid_t vfork_and_run(const ExecPlan& plan) {
  const pid_t pid = ::vfork();
  if (pid == 0) run_child(plan);
  return pid;
}

// 0 if the program was executed, else the errno that stopped it: negative, if its cgroup did.
int read_exec_errno(int fd) {
  int failure = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == sizeof failure ? failure : 0;
}

// The system call, since libc's waitid() does not return the child's use of resources.
siginfo_t wait_for(int pid, int options, rusage* usage = nullptr) {
  siginfo_t info{};
  while (::syscall(SYS_waitid, P_PID, pid, &info, options, usage) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECHILD) {
      throw Error(ErrorKind::internal, fmt::format("pid {} was reaped by another part of this program (a waitpid(-1) "
                                                   "or a SIGCHLD handler?); its exit status is lost",
                                                   pid));
    }
    throw system_error(fmt::format("waiting for pid {}", pid), errno);
  }
  return info;
}

ExitStatus status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status, .core_dumped = info.si_code == CLD_DUMPED};
}

}  // namespace

void occupy_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", O_RDWR);
    if (opened != fd) throw system_error("opening /dev/null in place of a closed standard stream", errno);
  }
}

ChildProcess ChildProcess::start(const Command& command, const sigset_t& mask, int reaper_fd) {
  auto [error_reader, error_writer] = make_pipe("a rank");
  const std::vector<char*> argv = pointers(command.argv);
  const std::vector<char*> environment = pointers(command.environment);
  const std::vector<unsigned long> memory_nodes = mask_with(command.memory_node);
  const ExecPlan plan{command.path.c_str(),
                      argv.data(),
                      environment.data(),
                      command.keep_fds,
                      {command.stdin_fd, command.stdout_fd, command.stderr_fd},
                      reaper_fd,
                      error_writer.get(),
                      ::getpid(),
                      &mask,
                      command.cpu_mask,
                      memory_nodes,
                      command.cgroup_fd};
  pid_t pid = -1;
  int fork_errno = 0;
  {
    const SignalBlock block;
    pid = vfork_and_run(plan);
    fork_errno = errno;
  }
  if (pid < 0) throw system_error("starting a process for a rank (is the limit on processes reached?)", fork_errno);

  error_writer.reset();
  if (const int failure = read_exec_errno(error_reader.get()); failure != 0) {
    wait_for(pid, WEXITED);
    if (failure < 0) throw system_error("putting a rank into its cgroup", -failure);
    throw cannot_execute(command.path, failure);
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const int saved_errno = errno;
    ::kill(-pid, SIGKILL);
    wait_for(pid, WEXITED);
    throw system_error("pidfd_open (Lockstep needs Linux 5.9 or newer)", saved_errno);
  }
  return ChildProcess(pid, std::move(pidfd));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_), pidfd_(std::move(other.pidfd_)), reaped_(std::exchange(other.reaped_, true)) {}

ChildProcess::~ChildProcess() {
  if (reaped_) return;
  signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::signal_group(int signal) const noexcept {
  if (reaped_) return;
  ::kill(-pid_, signal);
  // It may have moved to another group.
  if (::getpgid(pid_) != pid_) ::kill(pid_, signal);
}

void ChildProcess::signal_alone(int signal) const noexcept {
  if (!reaped_) ::kill(pid_, signal);
}

std::optional<ExitStatus> ChildProcess::peek() const {
  const siginfo_t info = wait_for(pid_, WEXITED | WNOHANG | WNOWAIT);
  if (info.si_pid == 0) return std::nullopt;
  return status_of(info);
}

std::optional<ExitStatus> ChildProcess::try_reap() {
  if (!peek()) return std::nullopt;
  // While the dead leader is not reaped, its pid cannot be reused as a process group.
  ::kill(-pid_, SIGKILL);
  rusage usage{};
  const siginfo_t info = wait_for(pid_, WEXITED, &usage);
  reaped_ = true;
  ExitStatus status = status_of(info);
  status.peak_bytes = std::int64_t{usage.ru_maxrss} << 10;
  return status;
}

}  // namespace lockstep::internal
