// kill -9 while a checkpoint is saved: the previous file or the new one is there, whole.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "tests/process/checkpoint/traced_process.h"
#include "tests/process/checkpoint/versioned_file.h"
#include "tests/support/temporary_directory.h"

namespace kill_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::end_process;
using lockstep::testing::TracedProcess;

namespace {

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

// One save of a small file.
std::function<void()> save_of(const std::filesystem::path& path, std::uint64_t version) {
  return [=] { save_version(path, version, 100); };
}

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
    end_process(pid);
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
// feature: H-03
TEST_CASE("killed at every entry to and exit from a system call of a save") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  int stops = 0, old_found = 0, new_found = 0;
  for (bool is_done = false; !is_done; ++stops) {
    CAPTURE(stops);
    save_version(path, 1, 100);
    REQUIRE(files_in(directory.path()) == 1);
    {
      TracedProcess save(save_of(path, 2));
      for (int i = 0; i <= stops && !is_done; ++i) is_done = !save.step();
      if (is_done) CHECK(save.exit_code() == 0);
    }
    const std::uint64_t found = load_version(path);
    CHECK((found == 1 || found == 2));
    ++(found == 1 ? old_found : new_found);
  }
  CHECK(old_found > 10);
  CHECK(new_found > 2);
}

// fault: 5
// feature: H-03
TEST_CASE("the data is on the disk before the rename, and the rename before the save returns") {
  const TemporaryDirectory directory;
  std::vector<long> calls;
  {
    TracedProcess save(save_of(directory / "a.safetensors", 1));
    while (save.step()) {
      const long call = save.entered_call();
      if (call == SYS_write || call == SYS_pwrite64 || call == SYS_fsync || call == SYS_renameat) calls.push_back(call);
    }
    CHECK(save.exit_code() == 0);
  }
  // The thread sanitizer writes once more, at the child's end.
  if (calls.size() > 6) calls.resize(6);
  // Header, tensor, the header with the tensor's digest; data to the disk; the name; the directory to the disk.
  CHECK(calls == std::vector<long>{SYS_write, SYS_write, SYS_pwrite64, SYS_fsync, SYS_renameat, SYS_fsync});
}

// fault: 23
TEST_CASE("a large file goes to the disk while it is written, and an error of the disk then is one of the save") {
  if (!TracedProcess::kCanChangeCalls) return;
  constexpr std::size_t kElements = (std::size_t{20} << 20) / sizeof(std::uint64_t);
  for (const auto& [error, exit_code] :
       {std::pair(EIO, TracedProcess::kThrew), std::pair(ENOSPC, TracedProcess::kThrew), std::pair(ENOSYS, 0)}) {
    CAPTURE(error);
    const TemporaryDirectory directory;
    const std::filesystem::path path = directory / "a.safetensors";
    save_version(path, 1, 100);
    int asked = 0;
    TracedProcess save([&] { save_version(path, 2, kElements); });
    while (save.step()) {
      if (save.entered_call() != SYS_sync_file_range) continue;
      save.fail_call(error);
      ++asked;
    }
    CHECK(asked == 1);
    CHECK(save.exit_code() == exit_code);
    CHECK(load_version(path) == (exit_code == 0 ? 2 : 1));
    CHECK(files_in(directory.path()) == 1);
  }
}

}  // namespace kill_test
