#include "lockstep/train/data/idx_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/data/idx_fixture.h"

namespace idx_file_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::uint32_t kImages = 0x00000803;
constexpr std::uint32_t kLabels = 0x00000801;

std::string pattern(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 7);
  return bytes;
}

std::string load(const std::string& path, const std::vector<std::uint32_t>& item_shape) {
  IdxFile file(path, item_shape);
  std::string bytes(file.size_bytes(), '\0');
  file.read(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Error error_of_bytes(const std::string& bytes, const std::vector<std::uint32_t>& item_shape) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  write_plain(path, bytes);
  return error_of([&] { load(path, item_shape); });
}

}  // namespace

// feature: G-10
TEST_CASE("plain and compressed files give the same array") {
  const TemporaryDirectory directory;
  const std::string elements = pattern(5 * 4 * 3);
  write_plain(directory / "plain", idx_bytes(kImages, {5, 4, 3}, elements));
  write_gzip(directory / "packed.gz", idx_bytes(kImages, {5, 4, 3}, elements));
  for (const char* name : {"plain", "packed.gz"}) {
    IdxFile file(directory / name, {4, 3});
    CHECK(file.dimensions() == std::vector<std::uint32_t>{5, 4, 3});
    CHECK(file.data_offset() == 16);
    CHECK(load(directory / name, {4, 3}) == elements);
  }
  write_plain(directory / "empty", idx_bytes(kLabels, {0}, ""));
  CHECK(load(directory / "empty", {}).empty());
}

TEST_CASE("a file is found plain or compressed, and if not, the text lists what was looked for") {
  const TemporaryDirectory directory;
  write_plain(directory / "a", "x");
  write_plain(directory / "b.gz", "x");
  CHECK(find_idx_file(directory.path(), "a", "") == directory / "a");
  CHECK(find_idx_file(directory.path(), "b", "") == directory / "b.gz");
  CHECK_ERROR(error_of([&] { find_idx_file(directory.path(), "c", "Buy one."); }), ErrorKind::invalid_argument,
              "no such file in", directory / "c", directory / "c.gz", "Buy one.");
  CHECK_ERROR(error_of([&] { find_idx_file(directory / "missing", "c", ""); }), ErrorKind::invalid_argument,
              "no directory", directory / "missing/c.gz");
  CHECK_ERROR(error_of([&] { load(directory / "c", {}); }), ErrorKind::invalid_argument, "no such file");
  CHECK_ERROR(error_of([&] { load(directory.path(), {}); }), ErrorKind::invalid_argument, "not a regular file");
}

TEST_CASE("a file cut anywhere is refused, with the byte at which it ends") {
  const TemporaryDirectory directory;
  const std::string whole = idx_bytes(kLabels, {20}, pattern(20));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_ERROR(error_of_bytes(whole.substr(0, length), {}), ErrorKind::corrupt_data,
                "at byte " + std::to_string(length) + ":");
  }
  write_gzip(directory / "packed.gz", whole);
  const std::string packed = read_whole(directory / "packed.gz");
  for (std::size_t length = 0; length < packed.size(); ++length) {
    CAPTURE(length);
    write_plain(directory / "cut.gz", packed.substr(0, length));
    CHECK_ERROR(error_of([&] { load(directory / "cut.gz", {}); }), ErrorKind::corrupt_data, "cut.gz", "at byte");
  }
}

TEST_CASE("a compressed file with a flipped bit is refused") {
  const TemporaryDirectory directory;
  std::mt19937 random(7);
  std::string elements(4000, '\0');
  for (char& element : elements) element = static_cast<char>(random() % 10);
  write_gzip(directory / "packed.gz", idx_bytes(kLabels, {4000}, elements));
  const std::string packed = read_whole(directory / "packed.gz");
  constexpr std::size_t kGzipHeaderBytes = 10;  // of which time and system are of no consequence
  for (std::size_t at = kGzipHeaderBytes; at < packed.size(); ++at) {
    CAPTURE(at);
    std::string flipped = packed;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    write_plain(directory / "flipped.gz", flipped);
    CHECK_ERROR(error_of([&] { load(directory / "flipped.gz", {}); }), ErrorKind::corrupt_data, "flipped.gz");
  }
}

TEST_CASE("wrong magic numbers, dimensions and lengths are refused where they stand") {
  CHECK_ERROR(error_of_bytes(idx_bytes(0x00000d01, {4}, pattern(4)), {}), ErrorKind::corrupt_data, "at byte 0",
              "0x00000d01", "expected 0x00000801");
  CHECK_ERROR(error_of_bytes(idx_bytes(kLabels, {4}, pattern(4)), {28, 28}), ErrorKind::corrupt_data, "at byte 0",
              "expected 0x00000803", "3 dimensions");
  CHECK_ERROR(error_of_bytes(idx_bytes(kImages, {1, 28, 27}, pattern(28 * 27)), {28, 28}), ErrorKind::corrupt_data,
              "at byte 12", "dimension 2 is 27, expected 28");
  CHECK_ERROR(error_of_bytes(idx_bytes(kLabels, {4}, pattern(5)), {}), ErrorKind::corrupt_data, "at byte 12",
              "more bytes follow");
  CHECK_ERROR(error_of_bytes("<html><body>404</body></html>", {}), ErrorKind::corrupt_data, "at byte 0",
              "magic number");
}

TEST_CASE("sizes that the file cannot hold are refused before anything is allocated") {
  CHECK_ERROR(error_of_bytes(idx_bytes(kLabels, {0xffffffff}, pattern(5)), {}), ErrorKind::corrupt_data, "at byte 4",
              "4294967295", "13 bytes can hold");
  constexpr std::uint32_t kHuge = 0xffffffff;
  CHECK_ERROR(error_of_bytes(idx_bytes(kImages, {1, kHuge, kHuge}, ""), {kHuge, kHuge}), ErrorKind::corrupt_data,
              "at byte 8", "16 bytes can hold");
}

TEST_CASE("what stands behind compressed data is no part of them, unless it is compressed, too") {
  const TemporaryDirectory directory;
  const std::string whole = idx_bytes(kLabels, {300}, pattern(300));
  write_gzip(directory / "packed.gz", whole);
  const std::string packed = read_whole(directory / "packed.gz");
  for (const std::string behind : {"garbage", "g", "\x1f"}) {
    write_plain(directory / "more.gz", packed + behind);
    CHECK_ERROR(error_of([&] { load(directory / "more.gz", {}); }), ErrorKind::corrupt_data, "more.gz", "at byte 308",
                "more bytes follow");
  }
  write_gzip(directory / "first.gz", whole.substr(0, 100));
  write_gzip(directory / "second.gz", whole.substr(100));
  write_plain(directory / "two.gz", read_whole(directory / "first.gz") + read_whole(directory / "second.gz"));
  CHECK(load(directory / "two.gz", {}) == pattern(300));
}

TEST_CASE("no array of more than a gigabyte is believed, however large the file is") {
  const TemporaryDirectory directory;
  write_plain(directory / "sparse", idx_bytes(kLabels, {(1U << 30) + 1}, ""));
  std::filesystem::resize_file(directory / "sparse", std::uintmax_t{1} << 40);
  CHECK_ERROR(error_of([&] { IdxFile(directory / "sparse", {}); }), ErrorKind::corrupt_data, "at byte 4",
              "more than the limit of 1073741824");
}

TEST_CASE("a buffer of another size is refused") {
  const TemporaryDirectory directory;
  write_plain(directory / "labels", idx_bytes(kLabels, {4}, pattern(4)));
  IdxFile file(directory / "labels", {});
  std::string bytes(5, '\0');
  CHECK_ERROR(error_of([&] { file.read(std::as_writable_bytes(std::span(bytes))); }), ErrorKind::invalid_argument,
              "5 bytes, but the data has 4");
}

}  // namespace idx_file_test
