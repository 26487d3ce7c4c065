#include "lockstep/formats/atomic_file.h"

#include <doctest/doctest.h>

#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::ptrdiff_t files_in(const TemporaryDirectory& directory) {
  return std::distance(std::filesystem::directory_iterator(directory.path()), {});
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
