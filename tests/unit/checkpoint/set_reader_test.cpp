#include "lockstep/train/checkpoint/set_reader.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "lockstep/base/format.h"
#include "tests/graphs/dice.h"
#include "tests/support/expect_error.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_set.h"
#include "tests/support/temporary_directory.h"

namespace set_reader_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::Dice;
using lockstep::testing::part_name;
using lockstep::testing::SmallSet;
using lockstep::testing::version_of;
using lockstep::testing::write_set;

namespace fs = std::filesystem;

namespace {

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Another file of that name.
void replace(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

Error verify_error(const fs::path& set) {
  return error_of([&] { SetReader(set).verify(); });
}

// Neither verified nor loaded, and never taken for anything else than damage.
bool is_found(const fs::path& set) {
  const auto fails = [&](auto read) {
    try {
      SetReader reader(set);
      read(reader);
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::corrupt_data;
    }
  };
  return fails([](SetReader& reader) { reader.verify(); });
}

bool loads(const fs::path& set, std::int64_t version) {
  try {
    return version_of(set) == version;
  } catch (const Error&) {
    return false;
  }
}

long cases() {
  const char* text = std::getenv("LOCKSTEP_TEST_CASES");
  if (text != nullptr) return std::atol(text);
  return lockstep::testing::kIsSanitized ? 2'000 : 10'000;
}

}  // namespace

TEST_CASE("a set verifies, and says how far it is") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 5, .writers = 3});
  SetReader reader(set);
  reader.check_files();
  std::vector<std::uint64_t> progress;
  reader.verify([&](std::uint64_t bytes) { progress.push_back(bytes); });
  REQUIRE_FALSE(progress.empty());
  CHECK(std::ranges::is_sorted(progress));
  CHECK(progress.back() == 8 * 2 * 8 + 8);
  CHECK(version_of(reader) == 5);
  CHECK_ERROR(error_of([&] { SetReader(directory / "step-0000000401"); }), ErrorKind::invalid_argument,
              "step-0000000401", "no such checkpoint");
}

TEST_CASE("a piece is read in parts of any size, and its digest checked with the last one") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 5, .writers = 1});
  SetReader reader(set);
  const SetPiece piece = reader.manifest().tensors.at("weight").pieces[0];
  for (const std::size_t part : {1, 3, 8, 127, 128}) {
    CAPTURE(part);
    std::vector<std::byte> bytes(128), whole(128);
    TensorStream stream = reader.stream("weight", piece);
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = std::min(part, bytes.size() - at);
      stream.read(std::span(bytes).subspan(at, count));
      at += count;
      CHECK(stream.left() == bytes.size() - at);
    }
    reader.read("weight", piece, whole);
    CHECK(bytes == whole);
  }
  const fs::path file = set / part_name(0, 1);
  std::string damaged = read_whole(file);
  damaged[damaged.size() - 20] ^= 1;
  replace(file, damaged);
  SetReader again(set);
  TensorStream stream = again.stream("weight", piece);
  std::vector<std::byte> bytes(127);
  stream.read(bytes);
  CHECK_ERROR(error_of([&] { stream.read(std::span(bytes).first(1)); }), ErrorKind::corrupt_data, "'weight'",
              "XXH3-128 expected");
}

// fault: S9
TEST_CASE("links in a set are not followed") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {});
  const fs::path elsewhere = write_set(directory / "other", {});
  fs::remove(set / part_name(1, 2));
  fs::create_symlink(elsewhere / part_name(1, 2), set / part_name(1, 2));
  CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, part_name(1, 2), "link");
  CHECK_FALSE(loads(set, 1));
  fs::remove(set / "manifest.json");
  fs::create_symlink(elsewhere / "manifest.json", set / "manifest.json");
  CHECK_ERROR(error_of([&] { SetReader{set}; }), ErrorKind::invalid_argument, "manifest.json", "link");
  fs::remove(set / "manifest.json");
  REQUIRE(::mkfifo((set / "manifest.json").c_str(), 0600) == 0);
  CHECK_ERROR(error_of([&] { SetReader{set}; }), ErrorKind::invalid_argument, "not a regular file");
}

// fault: 25
TEST_CASE("files that are missing, longer, shorter or empty are named") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {});
  const fs::path file = set / part_name(0, 2);
  const std::string bytes = read_whole(file);
  for (const std::string& other : {bytes + '\0', bytes.substr(0, bytes.size() - 1), std::string()}) {
    replace(file, other);
    CHECK_ERROR(error_of([&] { SetReader(set).check_files(); }), ErrorKind::corrupt_data, part_name(0, 2),
                fmt::format("it has {} bytes; expected {}", other.size(), bytes.size()));
    CHECK_FALSE(loads(set, 1));
  }
  fs::remove(file);
  CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, part_name(0, 2), "no such file",
              "the part of rank 0 of a checkpoint of 2 ranks");
  replace(file, bytes);
  CHECK(loads(set, 1));
  fs::remove(set / "manifest.json");
  CHECK_ERROR(error_of([&] { SetReader{set}; }), ErrorKind::invalid_argument, "manifest.json", "no such file");
}

// fault: 24
TEST_CASE("files of another set, and of another rank, are found") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.step = 1, .version = 1});
  const fs::path other = write_set(directory.path(), {.step = 2, .version = 2});
  for (const int rank : {0, 1}) {
    fs::rename(set / part_name(rank, 2), set / "kept");
    fs::copy_file(other / part_name(rank, 2), set / part_name(rank, 2));
    CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, part_name(rank, 2),
                "a digest that differs from the manifest");
    CHECK_FALSE(loads(set, 1));
    CHECK_FALSE(loads(set, 2));
    fs::rename(set / "kept", set / part_name(rank, 2));
  }
  fs::rename(set / part_name(0, 2), set / "kept");
  fs::rename(set / part_name(1, 2), set / part_name(0, 2));
  fs::rename(set / "kept", set / part_name(1, 2));
  CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, part_name(0, 2));
  replace(set / "manifest.json", read_whole(other / "manifest.json"));
  CHECK(is_found(set));
}

// fault: 24
TEST_CASE("a file with a tensor more than the manifest knows is damaged, even if all others are right") {
  const TemporaryDirectory directory;
  const SmallSet content{.writers = 1};
  SetDirectory hidden(directory.path(), content.step);
  const WrittenFile part = lockstep::testing::write_part(hidden.path(), content, 0);
  Manifest manifest = lockstep::testing::manifest_of(content, {part});
  manifest.tensors.erase("scalar");
  const fs::path set = hidden.publish(serialise(manifest));
  CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, part_name(0, 1), "has 3 tensors, but the manifest lists 2");
}

// fault: 24
TEST_CASE("random flipped bits are found, wherever they are in the set") {
  const TemporaryDirectory directory(memory_directory());
  const fs::path set = write_set(directory.path(), {.rows = 4});
  std::vector<std::pair<fs::path, std::string>> files;
  std::uint64_t bits = 0;
  for (const auto& entry : fs::directory_iterator(set)) {
    files.emplace_back(entry.path(), read_whole(entry.path()));
    bits += files.back().second.size() * 8;
  }
  REQUIRE(files.size() == 3);
  Dice dice(24);
  for (long i = 0; i < cases(); ++i) {
    std::uint64_t bit = dice.next() % bits;
    auto file = files.begin();
    for (; bit >= file->second.size() * 8; ++file) bit -= file->second.size() * 8;
    const char byte = file->second[bit / 8];
    const char flipped = static_cast<char>(byte ^ (1 << (bit % 8)));
    std::fstream stream(file->first, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(static_cast<std::streamoff>(bit / 8)).put(flipped).flush();
    if (!is_found(set) || loads(set, 1)) {
      CAPTURE(file->first);
      CAPTURE(bit);
      CHECK(false);
    }
    stream.seekp(static_cast<std::streamoff>(bit / 8)).put(byte).flush();
  }
  CHECK(loads(set, 1));
}

// fault: 25
TEST_CASE("every truncation of every file is found") {
  const TemporaryDirectory directory(memory_directory());
  const fs::path set = write_set(directory.path(), {.rows = 4});
  for (const auto& entry : fs::directory_iterator(set)) {
    CAPTURE(entry.path());
    const std::string bytes = read_whole(entry.path());
    for (std::size_t length = bytes.size(); length-- > 0;) {
      fs::resize_file(entry.path(), length);
      const bool is_whole = !is_found(set) || loads(set, 1);
      if (!is_whole) continue;
      CAPTURE(length);
      CHECK(false);
    }
    replace(entry.path(), bytes);
    CHECK(loads(set, 1));
  }
}

TEST_CASE("a set of more files than may be open is read, and a piece again after its file was closed") {
  const TemporaryDirectory directory(memory_directory());
  constexpr int kFiles = 300;
  const fs::path set = write_set(directory.path(), {.version = 3, .writers = kFiles, .rows = kFiles});
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{256, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  SetReader reader(set);
  reader.verify();
  CHECK(version_of(reader) == 3);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a set that is replaced or removed while it is read says so") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 1});
  SetReader reader(set);
  write_set(directory.path(), {.version = 2, .writers = 3});
  CHECK_ERROR(error_of([&] { reader.verify(); }), ErrorKind::corrupt_data, "replaced or removed while it was read");
  SetReader second(set);
  remove_set(set);
  CHECK_ERROR(error_of([&] { second.verify(); }), ErrorKind::corrupt_data, "replaced or removed while it was read");
}

TEST_CASE("a set that was replaced between its manifest and its files is not called damaged, and a damaged one is") {
  const TemporaryDirectory directory;
  const fs::path set = write_set(directory.path(), {.version = 1});
  const Manifest before = SetReader(set).manifest();
  const auto check_replaced = [&](const std::function<void(SetReader&)>& read) {
    SetReader reader(set, before);
    const Error error = error_of([&] { read(reader); });
    CHECK_ERROR(error, ErrorKind::corrupt_data, set.string() + ": the checkpoint was replaced or removed while it was");
    CHECK_FALSE(contains(error.what(), "damaged"));
  };
  const auto read_all = [](SetReader& reader) { version_of(reader); };
  write_set(directory.path(), {.version = 2});  // of files of the same names and sizes
  check_replaced([](SetReader& reader) { reader.verify(); });
  check_replaced(read_all);
  write_set(directory.path(), {.version = 2, .rows = 9});
  check_replaced([](SetReader& reader) { reader.check_files(); });
  check_replaced([](SetReader& reader) { reader.open_files(); });
  check_replaced(read_all);
  // Its own manifest is there: it is the file that is wrong.
  const std::string part = read_whole(set / part_name(0, 2));
  replace(set / part_name(0, 2), part.substr(1));
  CHECK_ERROR(verify_error(set), ErrorKind::corrupt_data, "is damaged: it has");
}

}  // namespace set_reader_test
