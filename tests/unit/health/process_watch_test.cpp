// Whether another process has ended, with and without pidfds.
#include "lockstep/comm/health/process_watch.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tests/support/forked_child.h"

namespace process_watch_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// A process that waits until it is killed.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  ~Sleeper() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_;
};

bool ends(const ProcessWatch& watch) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  while (!watch.has_ended()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// As old kernels, gVisor and some containers answer.
void take_pidfds_away() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {sizeof code / sizeof *code, code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ::_exit(77);
  }
}

}  // namespace

TEST_CASE("a process is seen to end, also one that nobody has waited for yet") {
  const Sleeper sleeper;
  const ProcessWatch watch(sleeper.pid(), process_stat(sleeper.pid()).start);
  CHECK_FALSE(watch.has_ended());
  CHECK(watch.fd() >= 0);
  sleeper.kill();
  CHECK(ends(watch));
  CHECK(ends(ProcessWatch(sleeper.pid())));  // it is a zombie still
}

TEST_CASE("a process with the same pid and another start is not the one") {
  const ProcessStat self = process_stat(::getpid());
  CHECK(self.start != 0);
  CHECK(self.state == ProcessState::alive);
  CHECK(ProcessWatch(::getpid()).state() == ProcessState::alive);
  CHECK_FALSE(ProcessWatch(::getpid(), self.start).has_ended());
  CHECK(ProcessWatch(::getpid(), self.start - 1).has_ended());
}

TEST_CASE("nobody never ends, and a pid that nobody has has ended") {
  CHECK_FALSE(ProcessWatch().has_ended());
  int pid = 0;
  {
    const Sleeper sleeper;
    pid = sleeper.pid();
  }
  CHECK(ProcessWatch(pid, 1).has_ended());
  CHECK(process_stat(pid).is_missing);
}

TEST_CASE("a program that closes every descriptor, or puts others in their place, sees no process end by it") {
  const Sleeper sleeper;
  CHECK(exit_code_of_child([&] {
          const ProcessWatch closed(sleeper.pid()), replaced(sleeper.pid());
          ::close(closed.fd());
          const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));  // readable, as the pidfd of a dead process
          ::dup2(zero.get(), replaced.fd());
          if (closed.has_ended() || replaced.has_ended()) return false;
          sleeper.kill();
          return ends(closed) && ends(replaced);
        }) == 0);
}

TEST_CASE("where the kernel gives no pidfd, the end of a process is seen all the same") {
  const Sleeper sleeper;
  const int code = exit_code_of_child([&] {
    take_pidfds_away();
    const ProcessWatch watch(sleeper.pid());
    if (watch.fd() >= 0 || watch.has_ended() || ProcessWatch(sleeper.pid(), 1).has_ended() == false) return false;
    sleeper.kill();
    return ends(watch);
  });
  if (code == 77) {
    MESSAGE("no seccomp here");
  } else {
    CHECK(code == 0);
  }
}

}  // namespace process_watch_test
