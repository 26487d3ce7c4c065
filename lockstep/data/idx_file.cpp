#include "lockstep/data/idx_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {
namespace {

constexpr unsigned kUnsignedByte = 0x08;
// Deflate cannot do better than 1032 to 1, so a file of n bytes cannot hold more than this many times n.
constexpr std::uint64_t kMaxExpansion = 1032;
constexpr unsigned kBufferBytes = 256 * 1024;

std::uint32_t big_endian_32(const unsigned char* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

Error corrupt(const std::filesystem::path& path, std::uint64_t offset, const std::string& text) {
  return Error(ErrorKind::corrupt_data, fmt::format("{}: at byte {}: {}", path.string(), offset, text));
}

UniqueFd open_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int saved_errno = errno;
    if (saved_errno == ENOENT || saved_errno == ENOTDIR) {
      throw Error(ErrorKind::invalid_argument, fmt::format("{}: no such file", path.string()));
    }
    throw system_error(fmt::format("opening {}", path.string()), saved_errno);
  }
  return fd;
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

// zlib's reader, which passes a file that is not compressed through as it is.
struct IdxFile::Stream {
  explicit Stream(const std::filesystem::path& file) : path(file) {
    UniqueFd fd = open_file(file);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw system_error(fmt::format("fstat {}", file.string()), errno);
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorKind::invalid_argument, fmt::format("{}: not a regular file", file.string()));
    }
    file_bytes = static_cast<std::uint64_t>(status.st_size);
    handle = ::gzdopen(fd.get(), "rb");
    if (handle == nullptr) throw Error(ErrorKind::internal, fmt::format("{}: no memory for zlib", file.string()));
    fd.release();  // gzclose() closes it
    ::gzbuffer(handle, kBufferBytes);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { ::gzclose(handle); }

  // Up to `count` bytes: fewer only at the end of the data.
  std::size_t read_some(unsigned char* out, std::size_t count) {
    const auto request = static_cast<unsigned>(std::min<std::size_t>(count, std::numeric_limits<int>::max()));
    const int got = ::gzread(handle, out, request);
    int code = Z_OK;
    const char* text = ::gzerror(handle, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      const std::string reason = code == Z_BUF_ERROR ? "the compressed data ends too early" : text;
      throw corrupt(path, offset + static_cast<std::uint64_t>(std::max(got, 0)), reason);
    }
    offset += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }

  void read_exactly(unsigned char* out, std::size_t count, std::string_view what) {
    const std::uint64_t begin = offset;
    while (offset < begin + count) {
      const auto done = static_cast<std::size_t>(offset - begin);
      if (read_some(out + done, count - done) == 0) {
        throw corrupt(path, offset,
                      fmt::format("the data ends here, {} needs {} bytes from byte {} on", what, count, begin));
      }
    }
  }

  std::filesystem::path path;
  std::uint64_t file_bytes = 0;
  std::uint64_t offset = 0;
  gzFile handle = nullptr;
};

IdxFile::IdxFile(const std::filesystem::path& path, const std::vector<std::uint32_t>& item_shape)
    : path_(path), stream_(std::make_unique<Stream>(path)) {
  read_header(item_shape);
}

IdxFile::~IdxFile() = default;

void IdxFile::read_header(const std::vector<std::uint32_t>& item_shape) {
  std::array<unsigned char, 4> magic{};
  stream_->read_exactly(magic.data(), magic.size(), "the magic number");
  const std::size_t rank = item_shape.size() + 1;
  const std::uint32_t expected = kUnsignedByte << 8 | static_cast<std::uint32_t>(rank);
  if (big_endian_32(magic.data()) != expected) {
    throw corrupt(path_, 0,
                  fmt::format("the magic number is {:#010x}, expected {:#010x}: unsigned bytes in {} dimensions",
                              big_endian_32(magic.data()), expected, rank));
  }
  std::uint64_t count = 1;
  const std::uint64_t limit = stream_->file_bytes * kMaxExpansion;
  for (std::size_t i = 0; i < rank; ++i) {
    std::array<unsigned char, 4> bytes{};
    const std::uint64_t offset = stream_->offset;
    stream_->read_exactly(bytes.data(), bytes.size(), "a dimension");
    const std::uint32_t dimension = big_endian_32(bytes.data());
    if (i > 0 && dimension != item_shape[i - 1]) {
      throw corrupt(path_, offset, fmt::format("dimension {} is {}, expected {}", i, dimension, item_shape[i - 1]));
    }
    if (dimension != 0 && count > limit / dimension) {
      throw corrupt(path_, offset,
                    fmt::format("the dimensions ask for at least {} x {} bytes, more than a file of {} bytes can hold",
                                count, dimension, stream_->file_bytes));
    }
    count *= dimension;
    dimensions_.push_back(dimension);
  }
  size_bytes_ = static_cast<std::size_t>(count);
}

void IdxFile::read(MutableByteSpan out) {
  if (out.size() != size_bytes_) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: a buffer of {} bytes for {} bytes of data", path_.string(), out.size(), size_bytes_));
  }
  stream_->read_exactly(reinterpret_cast<unsigned char*>(out.data()), out.size(), "the array");
  const std::uint64_t end = stream_->offset;
  // Asking for one byte more also makes zlib compare the checksum at the end.
  unsigned char extra = 0;
  if (stream_->read_some(&extra, 1) != 0) throw corrupt(path_, end, "the array ends here, but the file goes on");
}

}  // namespace lockstep
