// The search for the set that is loaded: beside writers, through links, and where a directory cannot be looked into.
#include "lockstep/train/checkpoint/set_search.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace set_search_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::CapturedLog;
using lockstep::testing::exit_code_of_child;
using lockstep::testing::part_name;
using lockstep::testing::version_of;
using lockstep::testing::write_set;

namespace fs = std::filesystem;

namespace {

SetSearch search_in(const fs::path& directory) {
  return SetSearch(directory, SignatureCheck(SignatureCheck::Need::none));
}

// The version of the newest set that can be read to its end; nothing if there is none.
std::optional<std::int64_t> newest_version(const fs::path& directory) {
  SetSearch search = search_in(directory);
  while (const auto found = search.next()) {
    try {
      const std::string name = found->path.string();
      SetReader set(found->path, parse_manifest(found->manifest, Origin(name)));
      set.open_files();
      return version_of(set);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data) throw;
    }
  }
  return std::nullopt;
}

// Root may look into everything.
void become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) throw system_error("setresuid", errno);
}

// Of a search in a child process of nobody, or "" if it finds no error; the exit code says whether it has the parts.
bool is_refused(const fs::path& directory, const std::string& part) {
  return exit_code_of_child([&] {
           become_nobody();
           SetSearch search = search_in(directory);
           try {
             search.next();
             return false;
           } catch (const Error& error) {
             return error.kind() == ErrorKind::internal && contains(error.what(), part) &&
                    contains(error.what(), "Permission denied");
           }
         }) == 0;
}

}  // namespace

TEST_CASE("a set that has lost its manifest is passed over with a warning, and is not nothing") {
  const TemporaryDirectory directory;
  write_set(directory.path(), {.step = 4, .version = 1});
  const fs::path newest = write_set(directory.path(), {.step = 5, .version = 2});
  fs::create_directory(directory / "step-0000000006");  // somebody's own
  fs::remove(newest / kManifestName);
  const CapturedLog log;
  CHECK(newest_version(directory.path()) == 1);
  CHECK(log.text().find("step-0000000005 is skipped: its manifest.json is missing") != std::string::npos);
  CHECK(log.text().find("step-0000000006") == std::string::npos);
  fs::remove_all(set_path(directory.path(), 4));
  SetSearch search = search_in(directory.path());
  CHECK(!search.next());
  CHECK(search.has_seen_any());
}

TEST_CASE("damaged sets are passed over, each with one warning, and the next one is the one before") {
  const TemporaryDirectory directory;
  for (const std::uint64_t step : {1, 2, 3}) write_set(directory.path(), {.step = step});
  std::ofstream(set_path(directory.path(), 3) / "manifest.json") << "{}";
  const CapturedLog log;
  SetSearch search = search_in(directory.path());
  CHECK_FALSE(search.has_seen_any());
  CHECK(search.next()->path == set_path(directory.path(), 2));
  CHECK(search.next()->path == set_path(directory.path(), 1));
  CHECK_FALSE(search.next().has_value());
  CHECK(search.has_seen_any());
  const std::string text = log.text();
  CHECK(contains(text, "step-0000000003 is skipped"));
  CHECK(text.find("skipped") == text.rfind("skipped"));
}

TEST_CASE("links to a directory and to a set are followed; a link to nothing is no empty directory") {
  const TemporaryDirectory directory;
  const fs::path base = fs::path(directory / "runs");
  fs::create_directory(base);
  fs::create_directory_symlink(base, directory / "link");
  CHECK(write_set(directory / "link", {.version = 7}) == fs::path(directory / "link") / "step-0000000400");
  write_set(directory / "link", {.version = 8});  // in place of the first
  CHECK(newest_version(base) == 8);
  CHECK(newest_version(directory / "link") == 8);
  fs::create_directory_symlink(set_path(base, 400), directory / "newest");
  CHECK(newest_version(directory / "newest") == 8);
  CHECK_FALSE(newest_version(directory / "missing").has_value());
  fs::create_directory_symlink(directory / "missing", directory / "dangling");
  CHECK_ERROR(error_of([&] { newest_version(directory / "dangling"); }), ErrorKind::invalid_argument, "dangling",
              "a link to a directory that does not exist");
}

TEST_CASE("a set whose name has no zeros in front is none, for whoever looks for one") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 1});
  fs::rename(set, directory / "step-400");
  CHECK(list_sets(directory.path()).empty());
  CHECK_FALSE(newest_version(directory.path()).has_value());
  write_set(directory.path(), {.version = 2});
  CHECK(newest_version(directory.path()) == 2);
  CHECK(newest_version(directory / "step-400") == 1);  // who names it means it
}

TEST_CASE("beside a writer that replaces sets and removes old ones there is always a whole one") {
  const TemporaryDirectory directory(memory_directory());
  write_set(directory.path(), {.step = 0, .version = 0});
  const pid_t writer = ::fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    try {
      for (int i = 1; i <= 300; ++i) {
        const auto step = static_cast<std::uint64_t>(i / 2);
        write_set(directory.path(), {.step = step, .version = i, .writers = 1 + i % 3});
        if (i % 2 == 0) remove_set(set_path(directory.path(), step - 1));
      }
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int found = 0, status = 0;
  std::int64_t last = 0;
  for (bool is_running = true; is_running;) {
    is_running = ::waitpid(writer, &status, WNOHANG) == 0;
    const auto version = newest_version(directory.path());
    REQUIRE(version.has_value());
    CHECK(*version >= last);
    last = *version;
    ++found;
  }
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(last == 300);
  CHECK(found > 10);
}

TEST_CASE("files that are open can be read to their end when the set is removed") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 5, .writers = 3});
  SetReader reader(set);
  reader.open_files();
  remove_set(set);
  CHECK(version_of(reader) == 5);
  CHECK_ERROR(error_of([&] { SetReader(set, reader.manifest()); }), ErrorKind::corrupt_data,
              "replaced or removed while it was read");
}

TEST_CASE("what may not be read or looked into is an error that names it, and no empty directory") {
  const TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms(0755));
  const fs::path base = fs::path(directory / "runs"), set = write_set(base, {});
  for (const int mode : {0000, 0444, 0111}) {
    CAPTURE(mode);
    fs::permissions(base, fs::perms(mode));
    CHECK(is_refused(base, base.string()));
  }
  fs::permissions(base, fs::perms(0755));
  for (const int mode : {0000, 0444}) {
    CAPTURE(mode);
    fs::permissions(set, fs::perms(mode));
    CHECK(is_refused(base, set.string()));
  }
  fs::permissions(set, fs::perms(0755));
  fs::permissions(set / "manifest.json", fs::perms(0000));
  CHECK(is_refused(base, (set / "manifest.json").string()));
  fs::permissions(base, fs::perms(0700));
}

TEST_CASE("a set is not passed over for lack of descriptors") {
  const TemporaryDirectory directory;
  write_set(directory.path(), {.step = 1, .version = 1});
  write_set(directory.path(), {.step = 2, .version = 2});
  for (int free = 0; free < 8; ++free) {
    CAPTURE(free);
    CHECK(exit_code_of_child([&] {
            std::vector<UniqueFd> taken;
            const rlimit few{64, 64};
            if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return false;
            while (UniqueFd next{::open("/dev/null", O_RDONLY | O_CLOEXEC)}) taken.push_back(std::move(next));
            taken.resize(taken.size() - static_cast<std::size_t>(free));
            try {
              return newest_version(directory.path()) == 2;
            } catch (const Error& error) {
              return free < 4 && error.kind() == ErrorKind::internal && contains(error.what(), "Too many open files");
            }
          }) == 0);
  }
}

TEST_CASE("a set of many files is read where few descriptors are left") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 3, .writers = 40, .rows = 40});
  CHECK(exit_code_of_child([&] {
          std::vector<UniqueFd> taken;
          const rlimit few{256, 256};
          if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return false;
          while (UniqueFd next{::open("/dev/null", O_RDONLY | O_CLOEXEC)}) taken.push_back(std::move(next));
          taken.resize(taken.size() - 6);
          SetReader reader(set);
          reader.open_files();
          reader.verify();
          return version_of(reader) == 3;
        }) == 0);
}

}  // namespace set_search_test
