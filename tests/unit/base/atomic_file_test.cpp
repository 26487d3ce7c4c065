#include "lockstep/base/atomic_file.h"

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>

#include "lockstep/base/unique_fd.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/temporary_directory.h"

namespace atomic_file_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::ptrdiff_t files_in(const TemporaryDirectory& directory) {
  return std::distance(std::filesystem::directory_iterator(directory.path()), {});
}

void make_socket(const std::string& path) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

}  // namespace

TEST_CASE("the new content appears when it is published, and not before") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "a") << "old";
  {
    AtomicFile file(directory / "a");
    file.write(bytes_of("new "));
    file.write(bytes_of("content"));
    CHECK(read_whole(directory / "a") == "old");
    file.publish();
    CHECK(read_whole(directory / "a") == "new content");
  }
  CHECK(files_in(directory) == 1);
}

TEST_CASE("what was not published leaves no trace") {
  const TemporaryDirectory directory;
  {
    AtomicFile file(directory / "a");
    file.write(bytes_of("new"));
    CHECK(files_in(directory) == 1);
  }
  CHECK(files_in(directory) == 0);
}

TEST_CASE("a new writer removes what a killed one left, and nothing else") {
  const TemporaryDirectory directory;
  AtomicFile living(directory / "a");
  std::ofstream(directory / ".a.writing-0123456789abcdef") << "left";
  std::ofstream(directory / ".b.writing-0123456789abcdef") << "another target's";
  AtomicFile file(directory / "a");
  CHECK_FALSE(std::filesystem::exists(directory / ".a.writing-0123456789abcdef"));
  CHECK(std::filesystem::exists(directory / ".b.writing-0123456789abcdef"));
  CHECK(files_in(directory) == 3);
  file.publish();
  living.write(bytes_of("last"));
  living.publish();
  CHECK(read_whole(directory / "a") == "last");
}

// fault: S9
TEST_CASE("nothing is written, removed or made private through a link that somebody has put there") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "thesis") << "ten years of work";
  std::filesystem::create_symlink(directory / "thesis", directory / "a");
  std::filesystem::create_symlink(directory / "thesis", directory / ".a.writing-0123456789abcdef");
  AtomicFile file(directory / "a");
  file.write(bytes_of("new"));
  file.publish();
  CHECK_FALSE(std::filesystem::is_symlink(directory / "a"));
  CHECK(read_whole(directory / "a") == "new");
  CHECK(std::filesystem::status(directory / "a").permissions() == std::filesystem::perms(0600));
  CHECK(read_whole(directory / "thesis") == "ten years of work");
  CHECK(std::filesystem::status(directory / "thesis").permissions() != std::filesystem::perms(0600));
}

// fault: S9
TEST_CASE("a FIFO, a socket or a device is never replaced, nor a link to one") {
  const TemporaryDirectory directory;
  REQUIRE(::mkfifo((directory / "fifo").c_str(), 0600) == 0);
  make_socket(directory / "socket");
  std::filesystem::create_symlink("/dev/null", directory / "device");
  std::filesystem::create_symlink("fifo", directory / "link");
  const std::vector<std::pair<std::string, std::string>> cases = {{directory / "fifo", "a FIFO"},
                                                                  {directory / "socket", "a socket"},
                                                                  {directory / "device", "a device"},
                                                                  {directory / "link", "a FIFO"}};
  for (const auto& [path, kind] : cases) {
    const auto before = std::filesystem::symlink_status(path).type();
    CHECK_ERROR(error_of([&] { AtomicFile file(path); }), ErrorKind::invalid_argument, path, kind);
    CHECK(std::filesystem::symlink_status(path).type() == before);
  }
  {
    AtomicFile file(directory / "late");
    REQUIRE(::mkfifo((directory / "late").c_str(), 0600) == 0);
    CHECK_ERROR(error_of([&] { file.publish(); }), ErrorKind::invalid_argument, directory / "late", "a FIFO");
  }
  CHECK(std::filesystem::is_fifo(directory / "late"));
  CHECK(files_in(directory) == 5);
  std::filesystem::create_symlink(directory / "nowhere", directory / "dangling");
  AtomicFile file(directory / "dangling");
  file.publish();
  CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(directory / "dangling")));
}

// fault: S9
TEST_CASE("a file has the mode that its writer chooses, whatever was there before") {
  const TemporaryDirectory directory;
  const mode_t mask = ::umask(0027);
  for (const auto& [mode, expected] : {std::pair<mode_t, int>{kSharedMode, 0640}, {kPrivateMode, 0600}}) {
    std::ofstream(directory / "a") << "old";
    REQUIRE(::chmod((directory / "a").c_str(), 0606) == 0);
    AtomicFile file(directory / "a", {.mode = mode});
    file.write(bytes_of("new"));
    file.publish();
    CHECK(std::filesystem::status(directory / "a").permissions() == std::filesystem::perms(expected));
  }
  AtomicFile shared(directory / "a", {.mode = 0666, .obeys_umask = false});
  shared.publish();
  CHECK(std::filesystem::status(directory / "a").permissions() == std::filesystem::perms(0666));
  ::umask(mask);
}

TEST_CASE("a file that is to be there once is published by the first of its writers") {
  const TemporaryDirectory directory;
  AtomicFile first(directory / "a"), second(directory / "a");
  first.write(bytes_of("first"));
  second.write(bytes_of("second"));
  first.publish_if_missing();
  second.publish_if_missing();
  CHECK(read_whole(directory / "a") == "first");
  CHECK(files_in(directory) == 1);
}

TEST_CASE("a directory that is moved while its file is written keeps the file") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "before");
  AtomicFile file(directory / "before/a");
  file.write(bytes_of("new"));
  std::filesystem::rename(directory / "before", directory / "after");
  std::filesystem::create_directory(directory / "before");  // of somebody else
  file.publish();
  CHECK(read_whole(directory / "after/a") == "new");
  CHECK(std::filesystem::is_empty(directory / "before"));
}

TEST_CASE("a target that cannot be replaced is an error, and the temporary file goes") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "a");
  {
    AtomicFile file(directory / "a");
    CHECK_ERROR(error_of([&] { file.publish(); }), ErrorKind::internal, "renaming", directory / "a");
  }
  CHECK(files_in(directory) == 1);
  CHECK_ERROR(error_of([&] { AtomicFile(directory / "missing/a"); }), ErrorKind::invalid_argument,
              directory / "missing", "does not exist");
  CHECK_ERROR(error_of([&] { AtomicFile(directory / ""); }), ErrorKind::invalid_argument, "not the name of a file");
}

TEST_CASE("a limit on file sizes is named, with its remedy") {
  const TemporaryDirectory directory;
  const auto says_it = [&] {
    const rlimit nothing{0, 0};
    if (::setrlimit(RLIMIT_FSIZE, &nothing) != 0) return false;
    const Error error = error_of([&] { AtomicFile(directory / "a").write(bytes_of("x")); });
    return error.kind() == ErrorKind::internal &&
           contains(error.what(),
                    "files of this process are limited to 0 bytes: raise the limit (ulimit -f unlimited)");
  };
  CHECK(exit_code_of_child(says_it) == 0);
  CHECK(std::filesystem::is_empty(directory.path()));
}

}  // namespace atomic_file_test
