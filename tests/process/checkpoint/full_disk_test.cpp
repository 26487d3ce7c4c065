// A disk that fills up while a checkpoint is saved: the save fails loudly, and the old file stays.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include "tests/process/checkpoint/versioned_file.h"
#include "tests/support/temporary_directory.h"

namespace full_disk_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::size_t kElements = 4000;  // 32 000 bytes
constexpr int kNotPermitted = 77;

// Runs `action` in a child process, for what would change this one for good.
template <class Action>
int exit_code_of_child(Action action) {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    try {
      ::_exit(action());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
      ::_exit(1);
    }
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// "" if the save fails with `reason`, leaves version 1 and no other file; else what is wrong.
std::string check_failed_save(const std::filesystem::path& path, std::size_t elements, const std::string& reason) {
  try {
    save_version(path, 2, elements);
    return "the save did not fail";
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.kind() != ErrorKind::internal) return "wrong kind: " + text;
    for (const std::string& part : {path.string(), reason, std::string("unchanged")}) {
      if (text.find(part) == std::string::npos) return "the text lacks '" + part + "': " + text;
    }
  }
  if (load_version(path) != 1) return "the old file is gone";
  return files_in(path.parent_path()) == 1 ? "" : "a temporary file was left";
}

int report(const std::string& problem) {
  if (!problem.empty()) std::fprintf(stderr, "in the child: %s\n", problem.c_str());
  return problem.empty() ? 0 : 1;
}

}  // namespace

TEST_CASE("files may not grow: cut at every step of the way") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  save_version(path, 1, kElements);
  const std::size_t whole = std::filesystem::file_size(path);
  CHECK(exit_code_of_child([&] {
          ::signal(SIGXFSZ, SIG_IGN);
          for (std::size_t limit = 0; limit < whole; limit += 997) {
            const rlimit bound{limit, RLIM_INFINITY};
            if (::setrlimit(RLIMIT_FSIZE, &bound) != 0) return report("setrlimit");
            const std::string problem = check_failed_save(path, kElements, "File too large");
            if (!problem.empty()) return report("limit " + std::to_string(limit) + ": " + problem);
          }
          const rlimit enough{whole, RLIM_INFINITY};
          if (::setrlimit(RLIMIT_FSIZE, &enough) != 0) return report("setrlimit");
          save_version(path, 2, kElements);
          return load_version(path) == 2 ? 0 : 1;
        }) == 0);
}

TEST_CASE("a small file system is full") {
  const TemporaryDirectory directory;
  const int code = exit_code_of_child([&] {
    // Only this child sees the mount, and it ends with it.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", directory.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
      return kNotPermitted;
    }
    const std::filesystem::path path = directory / "a.safetensors";
    save_version(path, 1, kElements);
    for (std::size_t elements = 40'000; elements > 28'000; elements -= 1000) {
      const std::string problem = check_failed_save(path, elements, "No space left on device");
      if (!problem.empty()) return report(std::to_string(elements) + " elements: " + problem);
    }
    save_version(path, 2, kElements);
    return load_version(path) == 2 && files_in(directory.path()) == 1 ? 0 : 1;
  });
  if (code == kNotPermitted) {
    MESSAGE("not permitted to mount a file system here: the test before this one stands alone");
    return;
  }
  CHECK(code == 0);
}

}  // namespace full_disk_test
