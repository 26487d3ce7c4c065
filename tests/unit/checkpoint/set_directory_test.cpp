#include "lockstep/train/checkpoint/set_directory.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace set_directory_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::SmallSet;
using lockstep::testing::version_of;
using lockstep::testing::write_set;

namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

// A process that has begun a set and lives until it is killed.
class Writer {
 public:
  Writer(const fs::path& directory, std::uint64_t step) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      SetDirectory set(directory, step);
      lockstep::testing::write_part(set.path(), {.step = step}, 0);
      if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    ::close(ends[1]);
    const UniqueFd ready(ends[0]);
    char byte = 0;
    REQUIRE(::read(ready.get(), &byte, 1) == 1);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { kill(); }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("a step and the name of its set say the same") {
  CHECK(set_path("dir", 400) == "dir/step-0000000400");
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{99'999'999'999}, ~std::uint64_t{0}}) {
    CHECK(step_of_set(set_path("dir", step)) == step);
  }
  for (const char* name : {"step-", "step-1.safetensors", "step-1x", "step--1", "step-99999999999999999999", ".step-1",
                           "step-400", "step-00000000400", ".step-0000000001.writing-0", "x"}) {
    CAPTURE(name);
    CHECK_FALSE(step_of_set(name).has_value());
  }
}

TEST_CASE("a set is there as a whole once it is published, and belongs to its owner alone") {
  const TemporaryDirectory directory;
  const fs::path base = fs::path(directory / "runs") / "a";
  const fs::path set = write_set(base, {.step = 400, .version = 7, .writers = 3});
  CHECK(set == base / "step-0000000400");
  CHECK(version_of(set) == 7);
  CHECK(names_in(base) == std::set<std::string>{"step-0000000400"});
  CHECK(names_in(set) == std::set<std::string>{"manifest.json", "part-00000-of-00003.safetensors",
                                               "part-00001-of-00003.safetensors", "part-00002-of-00003.safetensors"});
  for (const fs::path& made : {fs::path(directory / "runs"), base, set}) CHECK(mode_of(made) == 0700);
  for (const auto& entry : fs::directory_iterator(set)) CHECK(mode_of(entry.path()) == 0600);
}

TEST_CASE("a set that is not published leaves nothing") {
  const TemporaryDirectory directory;
  {
    const SetDirectory set(directory.path(), 3);
    lockstep::testing::write_part(set.path(), {}, 0);
    CHECK(names_in(directory.path()).size() == 1);
    CHECK(list_sets(directory.path()).empty());
  }
  CHECK(names_in(directory.path()).empty());
}

TEST_CASE("a set takes the place of another one of its step, with no file of that left") {
  const TemporaryDirectory directory;
  write_set(directory.path(), {.version = 1, .writers = 4});
  const fs::path set = write_set(directory.path(), {.version = 2, .writers = 2});
  CHECK(version_of(set) == 2);
  CHECK(names_in(set).size() == 3);
  CHECK(names_in(directory.path()) == std::set<std::string>{"step-0000000400"});
}

TEST_CASE("sets are listed newest first; links, files and directories without a manifest are not") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {20, 3, 100}) write_set(directory.path(), {.step = step});
  fs::create_directory(directory / "step-0000000500");
  fs::create_directory_symlink(set_path(directory.path(), 100), directory / "step-0000000600");
  std::ofstream(directory / "step-0000000700") << "x";
  fs::create_directory(directory / "step-0000000800");
  fs::create_symlink(set_path(directory.path(), 100) / "manifest.json", directory / "step-0000000800/manifest.json");
  std::vector<std::uint64_t> steps;
  for (const SetPlace& each : list_sets(directory.path())) steps.push_back(each.step);
  CHECK(steps == std::vector<std::uint64_t>{100, 20, 3});
  CHECK_ERROR(error_of([&] { list_sets(directory / "missing"); }), ErrorKind::invalid_argument, directory / "missing");
}

// fault: 5
TEST_CASE("what killed writers have left goes with the next save, and what living ones write stays") {
  const TemporaryDirectory directory;
  write_set(directory.path(), {.step = 1});
  Writer killed(directory.path(), 2);
  const Writer living(directory.path(), 2);
  std::vector<HiddenSet> hidden = list_hidden_sets(directory.path());
  REQUIRE(hidden.size() == 2);
  for (const HiddenSet& each : hidden) CHECK_FALSE(each.is_abandoned);
  killed.kill();
  hidden = list_hidden_sets(directory.path());
  REQUIRE(hidden.size() == 2);
  CHECK(hidden[0].is_abandoned != hidden[1].is_abandoned);
  const HiddenSet& kept = hidden[0].is_abandoned ? hidden[1] : hidden[0];
  fs::create_directory(directory / ".step-0000000009.removing-0123");  // by somebody who was killed while removing
  fs::create_directory(directory / ".other");
  write_set(directory.path(), {.step = 3});
  CHECK(names_in(directory.path()) ==
        std::set<std::string>{"step-0000000001", "step-0000000003", ".other", kept.path.filename().string()});
  CHECK(names_in(kept.path).size() == 1);
}

TEST_CASE("many writers begin at once and none takes another's directory away") {
  const TemporaryDirectory directory;
  std::vector<std::thread> threads;
  std::atomic<int> published = 0;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20; ++i) {
        try {
          write_set(directory.path(), {.step = static_cast<std::uint64_t>(thread), .version = i});
          ++published;
        } catch (const Error& error) {
          MESSAGE(std::string(error.what()));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(published == 160);
  CHECK(names_in(directory.path()).size() == 8);
  for (const SetPlace& each : list_sets(directory.path())) CHECK(version_of(each.path) == 19);
}

// fault: 5
// feature: H-03
TEST_CASE("a reader sees the old set or the new one while a writer replaces it 200 times") {
  const TemporaryDirectory directory(memory_directory());
  const fs::path set = write_set(directory.path(), {.version = 0});
  const pid_t writer = ::fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    try {
      for (int i = 1; i <= 200; ++i) write_set(directory.path(), {.version = i, .writers = 1 + i % 3});
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::int64_t last = 0;
  int whole = 0, replaced = 0, status = 0;
  for (bool is_running = true; is_running;) {
    is_running = ::waitpid(writer, &status, WNOHANG) == 0;
    try {
      const std::int64_t version = version_of(set);
      CHECK(version >= last);
      last = version;
      ++whole;
    } catch (const Error& error) {
      // Never "no such checkpoint", another size or another digest.
      CHECK(contains(error.what(), "replaced or removed while it was read; read it again"));
      ++replaced;
    }
  }
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(last == 200);
  MESSAGE(whole << " reads of a whole set, " << replaced << " of one that was replaced meanwhile");
  CHECK(whole > 20);
  CHECK(names_in(directory.path()).size() == 1);
}

TEST_CASE("a directory that cannot be made is named, and one that exists already keeps its mode") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "x";
  CHECK_ERROR(error_of([&] { SetDirectory(directory / "file/sets", 1); }), ErrorKind::invalid_argument,
              directory / "file", "cannot create the directory", "name another");
  CHECK_ERROR(error_of([&] { SetDirectory(directory / "file", 1); }), ErrorKind::invalid_argument, "cannot create");
  fs::create_directory(directory / "open");
  fs::permissions(directory / "open", fs::perms(0755));
  write_set(fs::path(directory / "open/"), {});
  CHECK(mode_of(directory / "open") == 0755);
  std::ofstream(directory / "open/step-0000000007") << "mine";
  CHECK_ERROR(error_of([&] { write_set(directory / "open", {.step = 7}); }), ErrorKind::invalid_argument,
              "step-0000000007", "not a checkpoint has this name");
  CHECK(names_in(directory / "open") == std::set<std::string>{"step-0000000007", "step-0000000400"});
}

TEST_CASE("what is no set is never replaced, whatever it is") {
  const TemporaryDirectory directory;
  write_set(directory / "elsewhere", {.step = 2, .version = 5});
  fs::create_directory(directory / "step-0000000001");
  fs::create_directory(directory / "step-0000000002");
  std::ofstream(directory / "step-0000000002/notes") << "mine";
  fs::create_directory_symlink(directory / "elsewhere/step-0000000002", directory / "step-0000000003");
  for (const std::uint64_t step : {1, 2, 3}) {
    CAPTURE(step);
    CHECK_ERROR(error_of([&] { write_set(directory.path(), {.step = step}); }), ErrorKind::invalid_argument,
                set_path(directory.path(), step).string(), "not a checkpoint has this name", "is not replaced");
  }
  CHECK(names_in(directory.path()) ==
        std::set<std::string>{"elsewhere", "step-0000000001", "step-0000000002", "step-0000000003"});
  CHECK(names_in(directory / "step-0000000002") == std::set<std::string>{"notes"});
  CHECK(version_of(fs::path(directory / "elsewhere/step-0000000002")) == 5);
  // It comes while the set is written.
  SetDirectory late(directory.path(), 4);
  fs::create_directory(directory / "step-0000000004");
  CHECK_ERROR(error_of([&] { late.publish("{}"); }), ErrorKind::invalid_argument, "is not replaced");
  CHECK(fs::is_empty(directory / "step-0000000004"));
}

TEST_CASE("a set that is damaged is replaced") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 1});
  std::ofstream(set / "manifest.json") << "{}";
  write_set(directory.path(), {.version = 2});
  CHECK(version_of(set) == 2);
}

TEST_CASE("a set is removed as a whole, and one that is gone already is no error") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {});
  remove_set(set);
  CHECK(names_in(directory.path()).empty());
  remove_set(set);
}

TEST_CASE("two writers and one who removes take turns at the name of one set, and none of them fails") {
  const TemporaryDirectory directory(memory_directory());
  const fs::path set = set_path(directory.path(), 400);
  std::vector<std::thread> threads;
  std::atomic<int> writers = 2;
  std::string failures;
  std::mutex mutex;
  const auto note = [&](const Error& error) {
    const std::lock_guard lock(mutex);
    failures += error.what() + std::string("\n");
  };
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        try {
          write_set(directory.path(), {.version = i});
        } catch (const Error& error) {
          note(error);
        }
      }
      --writers;
    });
  }
  threads.emplace_back([&] {
    while (writers != 0) {
      try {
        remove_set(set);
      } catch (const Error& error) {
        note(error);
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == "");
  write_set(directory.path(), {.version = 7});
  CHECK(version_of(set) == 7);
  CHECK(names_in(directory.path()).size() == 1);
}

}  // namespace set_directory_test
