#include "lockstep/base/open_for_writing.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "lockstep/base/file_io.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace open_for_writing_test {

using namespace lockstep;
using namespace lockstep::internal;
namespace fs = std::filesystem;

namespace {

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

}  // namespace

// fault: S9
TEST_CASE("a file is made anew in place of a file or a link, with a mode of its own") {
  const TemporaryDirectory directory;
  const std::string file = directory / "file", link = directory / "link";
  std::ofstream(file) << "old";
  REQUIRE(::chmod(file.c_str(), 0666) == 0);
  std::ofstream held(file, std::ios::app);  // as who has put it there keeps it open
  std::ofstream(directory / "thesis") << "ten years of work";
  fs::create_symlink(directory / "thesis", link);
  const mode_t mask = ::umask(0027);
  write_all(create_in_place_of(file, kSharedMode, "test").get(), "new", "test");
  write_all(create_in_place_of(link, kPrivateMode, "test").get(), "new", "test");
  ::umask(mask);
  held << "from outside" << std::flush;
  CHECK(read_whole(file) == "new");
  CHECK(mode_of(file) == 0640);
  CHECK_FALSE(fs::is_symlink(link));
  CHECK(mode_of(link) == 0600);
  CHECK(read_whole(directory / "thesis") == "ten years of work");
}

// fault: S9
TEST_CASE("what is no file is neither replaced nor appended to, and is not waited for") {
  const TemporaryDirectory directory;
  REQUIRE(::mkfifo((directory / "fifo").c_str(), 0666) == 0);
  fs::create_symlink("/dev/null", directory / "null");
  fs::create_directory(directory / "folder");
  const auto replace = [&](const char* name) {
    return error_of([&] { create_in_place_of(directory / name, kSharedMode, "test"); });
  };
  const auto append = [&](const char* name) {
    return error_of([&] { open_to_append(directory / name, kSharedMode, "test"); });
  };
  CHECK_ERROR(replace("fifo"), ErrorKind::invalid_argument, "test: ", "a FIFO");
  CHECK_ERROR(replace("null"), ErrorKind::invalid_argument, "a device");
  CHECK_ERROR(replace("folder"), ErrorKind::invalid_argument, "Is a directory");
  CHECK_ERROR(replace("none/file"), ErrorKind::invalid_argument, directory / "none", "does not exist");
  CHECK_ERROR(append("fifo"), ErrorKind::invalid_argument, "not a regular file");
  CHECK_ERROR(append("null"), ErrorKind::invalid_argument, "a link");
  CHECK_ERROR(append("folder"), ErrorKind::invalid_argument, "Is a directory");
  CHECK(fs::is_fifo(directory / "fifo"));
  CHECK(fs::is_symlink(directory / "null"));
  CHECK_FALSE(open_as_it_is(directory / "fifo"));
  CHECK(errno == ENXIO);
  CHECK_FALSE(open_as_it_is(directory / "null"));
  CHECK(errno == ELOOP);
}

// fault: S9
TEST_CASE("a file is appended to, and made if it is missing, but not where a link leads") {
  const TemporaryDirectory directory;
  for (const char* text : {"one ", "two"}) {
    write_all(open_to_append(directory / "file", kSharedMode, "test").get(), text, "test");
  }
  CHECK(read_whole(directory / "file") == "one two");
  for (const char* target : {"file", "nothing"}) {
    fs::remove(directory / "link");
    fs::create_symlink(directory / target, directory / "link");
    CHECK_ERROR(error_of([&] { open_to_append(directory / "link", kSharedMode, "test"); }), ErrorKind::invalid_argument,
                "test: this is a link");
  }
  CHECK(read_whole(directory / "file") == "one two");
  CHECK_FALSE(fs::exists(directory / "nothing"));
}

}  // namespace open_for_writing_test
