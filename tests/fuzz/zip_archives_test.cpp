#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/formats/zip_archive.h"
#include "lockstep/formats/zip_writer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/zip_sums.h"
#include "tests/support/temporary_directory.h"

namespace zip_archives_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::uint64_t kMostBytes = 1 << 14;  // of an entry

Bytes archive_of(const std::vector<std::pair<std::string, Bytes>>& entries) {
  const TemporaryDirectory directory;
  AtomicFile file(directory / "a.zip");
  ZipWriter writer(file);
  for (const auto& [name, bytes] : entries) writer.add(name, bytes);
  writer.finish();
  file.publish();
  std::ifstream stream(directory / "a.zip", std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The same with the numbers of its end in a zip64 one.
Bytes with_zip64_end(Bytes archive) {
  using testing::little_endian;
  const std::size_t end = archive.size() - 22;
  const Bytes count = little_endian(fuzz::number_in(archive, end + 10, 2), 8);
  const std::size_t size = fuzz::number_in(archive, end + 12, 4), begin = fuzz::number_in(archive, end + 16, 4);
  archive.resize(end);
  return archive + "PK\6\6" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) + Bytes(8, '\0') +
         count + count + little_endian(size, 8) + little_endian(begin, 8) + "PK\6\7" + Bytes(4, '\0') +
         little_endian(end, 8) + little_endian(1, 4) + "PK\5\6" + Bytes(4, '\0') + Bytes(12, '\xff') + Bytes(2, '\0');
}

void read_all(const ZipArchive& archive, std::uint64_t file_bytes) {
  std::uint64_t all = 0;
  for (const ZipEntry& entry : archive.entries()) {
    if (archive.find(entry.name) != &entry) throw std::logic_error("another entry of that name");
    if (!entry.is_plain) continue;  // its size is that of what it would unpack to
    if ((all += entry.bytes) > file_bytes) throw std::logic_error("more than the file has");
    const Bytes whole = archive.read_whole(entry, kMostBytes);
    Bytes parts(whole.size(), '\0');
    const auto out = std::as_writable_bytes(std::span(parts));
    archive.read(entry, out.size() / 2, out.subspan(out.size() / 2));
    archive.read(entry, 0, out.first(out.size() / 2));
    if (parts != whole) throw std::logic_error("other bytes in parts than as a whole");
  }
}

}  // namespace

TEST_CASE("zip archives") {
  fuzz::MemoryFile memory;
  fuzz::run({.name = "zip archives",
             .seeds = {archive_of({{"a/data.pkl", "\x80\2N."}, {"a/data/0", "0123456789abcdef"}, {"a/version", ""}}),
                       archive_of({{"x", "1"}}), with_zip64_end(archive_of({{"x", "1"}, {"y", ""}})), archive_of({})},
             .words = {"PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6", "PK\6\7", "PK\7\x08", "a/data/0", "\xff\xff\xff\xff"},
             .repair = [](Bytes& bytes, fuzz::Random&) { fuzz::repair_sums(bytes); },
             .kinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument},
             .memory_limit = std::size_t{4} << 20,  // libzip has room for 65536 more entries than the end counts
             .parse =
                 [&](ByteView bytes) {
                   const OpenFile file = memory.open(bytes);
                   const ZipArchive archive({.fd = file.fd.get(), .begin = 0, .bytes = bytes.size()}, "input");
                   read_all(archive, bytes.size());
                 }});
}

}  // namespace zip_archives_test
