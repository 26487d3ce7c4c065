#include "lockstep/comm/store/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "lockstep/base/format.h"
#include "lockstep/comm/store/log_record.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/temporary_directory.h"

namespace file_store_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

Deadline soon() { return Deadline::after(5s); }

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// What a kill -9 leaves: a store file that nobody uses.
Bytes image_of_dead_run(const std::string& path, std::string_view run_id) {
  FileStore store(path, run_id, soon());
  store.set("key", "old value", soon());
  return read_file(path);
}

void write_private(const std::string& path, const Bytes& content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  REQUIRE(::write(fd.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()));
}

}  // namespace

// feature: B-02
TEST_CASE("the file is private and the last user removes it") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  std::optional<FileStore> first(std::in_place, path, "run", soon());
  std::optional<FileStore> second(std::in_place, path, "run", soon());
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  first->set("k", "v", soon());
  first.reset();
  CHECK(second->get("k", soon()) == "v");
  CHECK(fs::exists(path));
  second.reset();
  CHECK_FALSE(fs::exists(path));
}

// fault: 40
// feature: B-02
TEST_CASE("what a dead run left behind is replaced, whatever state it is in") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  const Bytes image = image_of_dead_run(path, "old run");
  for (std::size_t cut = 0; cut <= image.size(); ++cut) {
    CAPTURE(cut);
    write_private(path, image.substr(0, cut));
    FileStore store(path, "new run", soon());
    CHECK_FALSE(store.check({"key"}, soon()));
    store.set("key", "new value", soon());
    CHECK(store.get("key", soon()) == "new value");
  }
}

// fault: 40
TEST_CASE("a file that a live run with another id uses is refused, naming both") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore store(path, "run A", soon());
  CHECK_ERROR(error_of([&] { FileStore(path, "run B", soon()); }), ErrorKind::invalid_argument, path, "'run A'",
              "'run B'", fmt::format("pid {}", ::getpid()));
  store.set("k", "v", soon());
  CHECK(store.get("k", soon()) == "v");
  CHECK(fs::exists(path));
}

// fault: 41
TEST_CASE("a torn record, cut at any byte, is removed and costs nothing but itself") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore reader(path, "run", soon());
  FileStore writer(path, "run", soon());
  writer.set("whole", "1", soon());
  const auto whole = fs::file_size(path);
  writer.set("torn", "some value", soon());
  const auto with_torn = fs::file_size(path);
  const Bytes image = read_file(path);
  for (auto cut = whole; cut < with_torn; ++cut) {
    CAPTURE(cut);
    FileStore late(path, "run", soon());  // has read nothing yet
    fs::resize_file(path, cut);
    CHECK(late.wait({"whole", "torn"}, Deadline::after(0s)) == std::vector<std::string>{"torn"});
    CHECK(fs::file_size(path) == whole);
    late.set("next", "2", soon());
    CHECK(late.get("next", soon()) == "2");
    write_private(path, image);
  }
}

TEST_CASE("a changed byte in a whole record is corrupt, with path and offset") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore writer(path, "run", soon());
  const auto header = fs::file_size(path);
  writer.set("key", "value", soon());
  FileStore reader(path, "run", soon());
  Bytes image = read_file(path);
  image.back() = static_cast<char>(image.back() ^ 1);
  write_private(path, image);
  CHECK_ERROR(error_of([&] { reader.get("key", soon()); }), ErrorKind::corrupt_data, path,
              fmt::format("offset {}", header), "checksum");
  Bytes huge = image;
  for (int i = 0; i < 4; ++i) huge[header + static_cast<std::size_t>(i)] = '\xff';
  write_private(path, huge);
  CHECK_ERROR(error_of([&] { reader.get("key", soon()); }), ErrorKind::corrupt_data, path,
              fmt::format("offset {}", header), "announces 4294967295 bytes");
}

TEST_CASE("a flipped bit in a length is damage, and not taken for a record that was cut short") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore writer(path, "run", soon());
  const auto header = fs::file_size(path);
  for (const char* key : {"a", "b", "c"}) writer.set(key, "value", soon());
  const Bytes image = read_file(path);
  for (std::size_t bit = 0; bit < 32; ++bit) {
    CAPTURE(bit);
    FileStore late(path, "run", soon());  // has read nothing yet
    Bytes flipped = image;
    flipped[header + bit / 8] = static_cast<char>(flipped[header + bit / 8] ^ (1 << bit % 8));
    write_private(path, flipped);
    CHECK(error_of([&] { late.get("c", soon()); }).kind() == ErrorKind::corrupt_data);
    CHECK(fs::file_size(path) == image.size());
    write_private(path, image);
    CHECK(late.get("c", soon()) == "value");
  }
}

TEST_CASE("a file of another format is refused by its version") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore store(path, "run", soon());
  Bytes image = read_file(path);
  for (const auto& [byte, version] : {std::pair('\n', "version 1,"), std::pair('7', "version '7',")}) {
    image[kLogStart - 1] = byte;
    write_private(path, image);
    CHECK_ERROR(error_of([&] { FileStore(path, "run", soon()); }), ErrorKind::invalid_argument, path, version,
                "writes version 2");
  }
}

// fault: S9
TEST_CASE("a file that is no store is left alone") {
  TemporaryDirectory directory;
  const std::string path = directory / "thesis.txt";
  write_private(path, "ten years of work");
  CHECK_ERROR(error_of([&] { FileStore(path, "run", soon()); }), ErrorKind::invalid_argument, path, "not a store file");
  CHECK(read_file(path) == "ten years of work");
  CHECK_ERROR(error_of([&] { FileStore(directory.path(), "run", soon()); }), ErrorKind::invalid_argument,
              "cannot open the store file");
  CHECK_ERROR(error_of([&] { FileStore(directory / "no/such/folder", "run", soon()); }), ErrorKind::invalid_argument,
              "No such file");
  fs::create_symlink(path, directory / "link");
  CHECK(error_of([&] { FileStore(directory / "link", "run", soon()); }).kind() == ErrorKind::invalid_argument);
}

// fault: S9
TEST_CASE("a file that others may write is refused, an empty one is made private") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  write_private(path, image_of_dead_run(path, "run"));
  ::chmod(path.c_str(), 0666);
  CHECK_ERROR(error_of([&] { FileStore(path, "run", soon()); }), ErrorKind::unauthorized, path, "0666");
  fs::remove(path);
  std::ofstream(path).flush();
  ::chmod(path.c_str(), 0644);
  FileStore store(path, "run", soon());
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("a process that stops while it holds the lock delays others no longer than their deadline") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  FileStore store(path, "run", soon());
  FileLog stopped(path, "run", soon());
  REQUIRE(stopped.try_lock());
  const TimePoint start = steady_clock().now();
  CHECK_ERROR(error_of([&] { store.set("k", "v", Deadline::after(30ms)); }), ErrorKind::timeout, "'k'", path, "locked");
  CHECK_ERROR(error_of([&] { store.add("k", 1, Deadline::after(30ms)); }), ErrorKind::timeout, "add");
  CHECK(store.wait({"k"}, Deadline::after(30ms)).size() == 1);
  CHECK_ERROR(error_of([&] { FileStore(path, "run", Deadline::after(30ms)); }), ErrorKind::timeout, path);
  CHECK(steady_clock().now() - start < 4s);
  stopped.unlock();
  store.set("k", "v", soon());
}

TEST_CASE("a forked child is refused, and can neither remove the file nor hold it") {
  TemporaryDirectory directory;
  const std::string path = directory / "store";
  std::optional<FileStore> store(std::in_place, path, "run", soon());
  store->set("n", "1", soon());
  CHECK(exit_code_of_child([&] {
          const bool refused = error_of([&] { store->add("n", 1, soon()); }).kind() == ErrorKind::invalid_argument &&
                               error_of([&] { store->get("n", soon()); }).kind() == ErrorKind::invalid_argument &&
                               error_of([&] { store->wait({"n"}, soon()); }).kind() == ErrorKind::invalid_argument;
          store.reset();
          return refused;
        }) == 0);
  CHECK(fs::exists(path));
  CHECK(store->add("n", 1, soon()) == 2);
  // A child that outlives its parent's use of the file.
  int gate[2];
  REQUIRE(::pipe(gate) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(gate[1]);
    char byte = 0;
    ::_exit(::read(gate[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(gate[0]);
  store.reset();
  CHECK_FALSE(fs::exists(path));
  ::close(gate[1]);
  ::waitpid(child, nullptr, 0);
}

}  // namespace file_store_test
