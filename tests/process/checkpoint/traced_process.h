// A child that stops at every entry to and exit from a system call, where it can be killed or told that the call
// failed.
#pragma once

#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>

namespace lockstep::testing {

inline void end_process(pid_t pid) {
  ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
}

class TracedProcess {
 public:
  static constexpr int kThrew = 2;  // its exit code if the body has thrown

  explicit TracedProcess(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      try {
        body();
      } catch (...) {
        ::_exit(kThrew);
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    REQUIRE(WIFSTOPPED(status));
    REQUIRE(::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0);
  }
  TracedProcess(const TracedProcess&) = delete;
  TracedProcess& operator=(const TracedProcess&) = delete;
  ~TracedProcess() {
    if (exit_code_ < 0) end_process(pid_);
  }

  // On to the next stop; false if the child has ended instead.
  bool step() {
    REQUIRE(::ptrace(PTRACE_SYSCALL, pid_, nullptr, nullptr) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    if (WIFSTOPPED(status)) return true;
    REQUIRE(WIFEXITED(status));
    exit_code_ = WEXITSTATUS(status);
    return false;
  }
  int exit_code() const { return exit_code_; }  // -1: it has not ended
  // The number of the system call that is being entered; -1 at an exit.
  long entered_call() const {
    __ptrace_syscall_info info{};
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) > 0);
    return info.op == PTRACE_SYSCALL_INFO_ENTRY ? static_cast<long>(info.entry.nr) : -1;
  }

#ifdef __x86_64__
  static constexpr bool kCanChangeCalls = true;
  // REQUIRES of both: a call is being entered. The first makes it fail without being executed, and goes to its exit;
  // the second halves a count of bytes, the third argument of read() and write(); false if it was less than two.
  void fail_call(int error) {
    user_regs_struct registers = get();
    registers.orig_rax = static_cast<unsigned long long>(-1);
    set(registers);
    REQUIRE(step());
    registers = get();
    registers.rax = static_cast<unsigned long long>(-error);
    set(registers);
  }
  bool halve_count() {
    user_regs_struct registers = get();
    if (registers.rdx < 2) return false;
    registers.rdx /= 2;
    set(registers);
    return true;
  }

 private:
  user_regs_struct get() const {
    user_regs_struct registers{};
    REQUIRE(::ptrace(PTRACE_GETREGS, pid_, nullptr, &registers) == 0);
    return registers;
  }
  void set(user_regs_struct& registers) const { REQUIRE(::ptrace(PTRACE_SETREGS, pid_, nullptr, &registers) == 0); }
#else
  static constexpr bool kCanChangeCalls = false;
  void fail_call(int) {}
  bool halve_count() { return false; }

 private:
#endif
  pid_t pid_;
  int exit_code_ = -1;
};

}  // namespace lockstep::testing
