#include "lockstep/base/own_links.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace own_links_test {

using namespace lockstep;
using namespace lockstep::internal;
namespace fs = std::filesystem;

namespace {

bool is_same(const UniqueFd& fd, const std::string& path) {
  struct stat one {};
  struct stat other {};
  REQUIRE(::fstat(fd.get(), &one) == 0);
  REQUIRE(::stat(path.c_str(), &other) == 0);
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

TEST_CASE("a folder is opened through this user's links, however its name ends") {
  const TemporaryDirectory directory;
  const std::string folder = directory / "folder";
  fs::create_directory(folder);
  fs::create_directory_symlink("folder", directory / "link");
  fs::create_directory_symlink(directory / "link", directory / "second");
  for (const char* name : {"folder", "folder/", "link", "link//", "second", "folder/.", "folder/.."}) {
    CAPTURE(name);
    const std::string path = directory / name;
    CHECK(is_same(open_folder(path, "test"), path));
  }
  CHECK(is_same(open_folder("/", "test"), "/"));
  CHECK(is_same(open_folder(".", "test"), "."));
  CHECK(read_own_link(directory / "link", "test") == "folder");
  CHECK_FALSE(read_own_link(folder, "test"));
}

TEST_CASE("what is no folder, and links in a circle, are errors") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "text";
  fs::create_symlink("circle", directory / "circle");
  for (const auto& [name, why] : {std::pair("file", "Not a directory"),
                                  {"circle", "Too many levels of symbolic links"},
                                  {"missing", "No such file or directory"}}) {
    const std::string path = directory / name;
    CHECK_ERROR(error_of([&] { open_folder(path, "test"); }), ErrorKind::invalid_argument, std::string("test: ") + why);
  }
}

TEST_CASE("a link of another user is not followed, wherever on the way it is") {
  if (::geteuid() != 0) return;  // only root makes one
  const TemporaryDirectory directory;
  fs::create_directory(directory / "folder");
  const std::string foreign = directory / "foreign";
  fs::create_directory_symlink("folder", foreign);
  fs::create_directory_symlink("foreign", directory / "own");
  REQUIRE(::lchown(foreign.c_str(), 65534, 65534) == 0);
  for (const char* name : {"foreign", "foreign/", "own"}) {
    const std::string path = directory / name;
    CHECK_ERROR(error_of([&] { open_folder(path, "test"); }), ErrorKind::invalid_argument,
                foreign + " is a link of user 65534");
  }
  CHECK_ERROR(error_of([&] { read_own_link(foreign, "test"); }), ErrorKind::invalid_argument,
              "is a link of user 65534");
}

}  // namespace own_links_test
