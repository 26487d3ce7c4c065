#include "lockstep/formats/zip_archive.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/file_io.h"
#include "lockstep/formats/zip_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/formats/pickle_bytes.h"

namespace zip_archive_test {

using namespace lockstep;
using namespace lockstep::internal;
using lockstep::testing::little_endian;

namespace {

std::string end_of(std::uint64_t entries) {
  const std::string count = little_endian(entries, 2);
  return "PK\5\6" + std::string(4, '\0') + count + count + std::string(8, '\0') + std::string(2, '\0');
}

// A zip64 end at byte `begin`, what points to it, and the end.
std::string end64_of(std::uint64_t entries, std::uint64_t begin) {
  const std::string count = little_endian(entries, 8);
  return "PK\6\6" + little_endian(44, 8) + std::string(12, '\0') + count + count + std::string(16, '\0') + "PK\6\7" +
         std::string(4, '\0') + little_endian(begin, 8) + little_endian(1, 4) + end_of(0xffff);
}

Error refusal(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  const OpenFile file = open_regular_file(path);
  return error_of([&] { ZipArchive({.fd = file.fd.get(), .begin = 0, .bytes = file.bytes}, path); });
}

}  // namespace

// fault: 26
TEST_CASE("an end that claims more entries than its file can hold is refused") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.pt";
  CHECK_ERROR(refusal(path, end_of(65535)), ErrorKind::corrupt_data, path, "is damaged");
  CHECK_ERROR(refusal(path, std::string(100, 'x') + end_of(3)), ErrorKind::corrupt_data, path, "is damaged");
  for (const std::uint64_t entries : {std::uint64_t{20'000'000}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    CHECK_ERROR(refusal(path, end64_of(entries, 0)), ErrorKind::corrupt_data, path, "is damaged");
    CHECK_ERROR(refusal(path, std::string(70'000, 'x') + end64_of(entries, 70'000)), ErrorKind::corrupt_data, path);
    CHECK_ERROR(refusal(path, end64_of(entries, 0) + "a comment"), ErrorKind::corrupt_data, path);
  }
}

TEST_CASE("an archive may hold another one, and what only looks like an end") {
  const TemporaryDirectory directory;
  std::string inner;
  for (int depth = 0; depth < 3; ++depth) {
    const std::string path = directory / "a.zip";
    AtomicFile file(path);
    ZipWriter writer(file);
    writer.add("inner", inner);
    writer.add("text", "PK\5\6 is how an end begins");
    writer.finish();
    file.publish();
    const OpenFile opened = open_regular_file(path);
    const FilePart part{.fd = opened.fd.get(), .begin = 0, .bytes = opened.bytes};
    inner = read_at(opened.fd.get(), 0, opened.bytes, "reading");
    CHECK(ZipArchive(part, path).entries().size() == 2);
  }
}

}  // namespace zip_archive_test
