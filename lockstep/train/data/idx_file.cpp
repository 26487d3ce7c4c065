#include "lockstep/train/data/idx_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr unsigned kUnsignedByte = 0x08;
// Deflate cannot do better than 1032 to 1, so a file of n bytes cannot hold more than this many times n.
constexpr std::uint64_t kMaxExpansion = 1032;
// Data sets of a gigabyte and more use other formats.
constexpr std::uint64_t kMaxArrayBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxRead = std::size_t{64} << 20;

std::uint32_t big_endian_32(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

std::filesystem::path find_idx_file(const std::filesystem::path& directory, const std::string& name,
                                    std::string_view advice) {
  const std::array candidates = {directory / name, directory / (name + ".gz")};
  for (const std::filesystem::path& candidate : candidates) {
    std::error_code ignored;
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  }
  std::error_code ignored;
  const bool has_directory = std::filesystem::is_directory(directory, ignored);
  throw Error(ErrorKind::invalid_argument,
              fmt::format("data set not found: {} {}; looked for {} and {}. {}",
                          has_directory ? "no such file in" : "no directory", directory.string(),
                          candidates[0].string(), candidates[1].string(), advice));
}

IdxSource IdxSource::file(const std::filesystem::path& path) {
  OpenFile opened = open_regular_file(path.string());
  const auto read = [file = std::make_shared<UniqueFd>(std::move(opened.fd)),
                     path](MutableByteSpan out) -> std::size_t {
    for (;;) {
      const ssize_t got = ::read(file->get(), out.data(), std::min(out.size(), kMaxRead));
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) throw system_error(fmt::format("reading {}", path.string()), errno);
    }
  };
  return {path.string(), read, opened.bytes};
}

IdxFile::IdxFile(const std::filesystem::path& path, const std::vector<std::uint32_t>& item_shape)
    : IdxFile(IdxSource::file(path), item_shape) {}

IdxFile::IdxFile(IdxSource source, const std::vector<std::uint32_t>& item_shape)
    : stream_(std::move(source.name), std::move(source.read)) {
  read_header(item_shape, source.bytes);
}

void IdxFile::read_exactly(MutableByteSpan out, std::string_view what) {
  const std::uint64_t begin = stream_.offset();
  if (stream_.read(out) == out.size()) return;
  stream_.throw_damaged(stream_.offset(),
                        fmt::format("the data ends here, but {} needs {} bytes from byte {}", what, out.size(), begin));
}

std::uint32_t IdxFile::read_number(std::string_view what) {
  std::array<unsigned char, 4> bytes{};
  read_exactly(std::as_writable_bytes(std::span(bytes)), what);
  return big_endian_32(bytes.data());
}

void IdxFile::read_header(const std::vector<std::uint32_t>& item_shape, std::uint64_t file_bytes) {
  const std::uint32_t magic = read_number("the magic number");
  const std::size_t rank = item_shape.size() + 1;
  const std::uint32_t expected = kUnsignedByte << 8 | static_cast<std::uint32_t>(rank);
  if (magic != expected) {
    stream_.throw_damaged(0, fmt::format("the magic number is {:#010x}, expected {:#010x}: unsigned bytes in {} "
                                         "dimensions",
                                         magic, expected, rank));
  }
  std::uint64_t count = 1;
  const std::uint64_t limit = file_bytes * kMaxExpansion;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint64_t offset = stream_.offset();
    const std::uint32_t dimension = read_number("a dimension");
    if (i > 0 && dimension != item_shape[i - 1]) {
      stream_.throw_damaged(offset, fmt::format("dimension {} is {}, expected {}", i, dimension, item_shape[i - 1]));
    }
    if (dimension != 0 && count > std::min(limit, kMaxArrayBytes) / dimension) {
      const std::string why = limit < kMaxArrayBytes ? fmt::format("a file of {} bytes can hold", file_bytes)
                                                     : fmt::format("the limit of {}", kMaxArrayBytes);
      stream_.throw_damaged(
          offset, fmt::format("the dimensions need at least {} x {} bytes, more than {}", count, dimension, why));
    }
    count *= dimension;
    dimensions_.push_back(dimension);
  }
  size_bytes_ = static_cast<std::size_t>(count);
}

void IdxFile::read(MutableByteSpan out) {
  if (out.size() != size_bytes_) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: the output buffer has {} bytes, but the data has {}",
                                                         stream_.name(), out.size(), size_bytes_));
  }
  read_exactly(out, "the array");
  const std::uint64_t end = stream_.offset();
  // Asking for one byte more also compares the checksum at the end.
  std::byte extra{};
  if (stream_.read({&extra, 1}) != 0) stream_.throw_damaged(end, "the array ends here, but more bytes follow");
}

}  // namespace lockstep::internal
