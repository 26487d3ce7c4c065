// kill -9 while a checkpoint is saved: the previous file or the new one is there, whole.
#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "tests/process/checkpoint/versioned_file.h"
#include "tests/support/temporary_directory.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
}

// A child that saves version after version and announces each one on `ready` when it is saved.
pid_t start_writer(const std::filesystem::path& path, std::uint64_t first_version, int ready) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    for (std::uint64_t version = first_version;; ++version) {
      save_version(path, version, 20'000);
      if (::write(ready, &version, sizeof version) != sizeof version) ::_exit(1);
    }
  } catch (...) {
    ::_exit(2);
  }
}

// One save in a child that stops at every entry to and exit from a system call.
class TracedSave {
 public:
  TracedSave(const std::filesystem::path& path, std::uint64_t version) : pid_(::fork()) {
    if (pid_ == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      try {
        save_version(path, version, 100);
      } catch (...) {
        ::_exit(2);
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    REQUIRE(WIFSTOPPED(status));
    REQUIRE(::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0);
  }
  TracedSave(const TracedSave&) = delete;
  TracedSave& operator=(const TracedSave&) = delete;
  ~TracedSave() {
    if (!exited_) end(pid_);
  }

  // On to the next stop; false if the child has ended instead.
  bool step() {
    REQUIRE(::ptrace(PTRACE_SYSCALL, pid_, nullptr, nullptr) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    exited_ = WIFEXITED(status);
    if (exited_) CHECK(WEXITSTATUS(status) == 0);
    return !exited_;
  }
  // The number of the system call that is being entered; -1 at an exit.
  long entered_call() const {
    __ptrace_syscall_info info{};
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) > 0);
    return info.op == PTRACE_SYSCALL_INFO_ENTRY ? static_cast<long>(info.entry.nr) : -1;
  }

 private:
  pid_t pid_;
  bool exited_ = false;
};

}  // namespace

// fault: 5
TEST_CASE("killed at a random moment, 40 times") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  save_version(path, 1, 20'000);
  std::uint64_t last_announced = 1;
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t pid = start_writer(path, last_announced + 1, write_end.get());
    REQUIRE(pid > 0);
    write_end.reset();
    std::uint64_t version = 0;
    REQUIRE(::read(read_end.get(), &version, sizeof version) == sizeof version);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));  // the moment is the point
    end(pid);
    do {
      last_announced = version;
    } while (::read(read_end.get(), &version, sizeof version) == sizeof version);
    const std::uint64_t found = load_version(path);
    // One more may have been saved and not announced.
    CHECK(found >= last_announced);
    CHECK(found <= last_announced + 1);
    last_announced = found;
  }
  save_version(path, 0, 1);
  CHECK(files_in(directory.path()) == 1);
}

// fault: 5
TEST_CASE("killed at every entry to and exit from a system call of a save") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  int stops = 0, old_found = 0, new_found = 0;
  for (bool is_done = false; !is_done; ++stops) {
    CAPTURE(stops);
    save_version(path, 1, 100);
    REQUIRE(files_in(directory.path()) == 1);
    {
      TracedSave save(path, 2);
      for (int i = 0; i <= stops && !is_done; ++i) is_done = !save.step();
    }
    const std::uint64_t found = load_version(path);
    CHECK((found == 1 || found == 2));
    ++(found == 1 ? old_found : new_found);
  }
  CHECK(old_found > 10);
  CHECK(new_found > 2);
}

// fault: 5
TEST_CASE("the data is on the disk before the rename, and the rename before the save returns") {
  const TemporaryDirectory directory;
  std::vector<long> calls;
  {
    TracedSave save(directory / "a.safetensors", 1);
    while (save.step()) {
      const long call = save.entered_call();
      if (call == SYS_write || call == SYS_fsync || call == SYS_rename) calls.push_back(call);
    }
  }
  // The thread sanitizer writes once more, at the child's end.
  if (calls.size() > 5) calls.resize(5);
  // Header, tensor; data to the disk; the name; the directory to the disk.
  CHECK(calls == std::vector<long>{SYS_write, SYS_write, SYS_fsync, SYS_rename, SYS_fsync});
}
