#include "lockstep/formats/zip_ending.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/file_io.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kEnd = "PK\5\6", kLocator = "PK\6\7", kEnd64 = "PK\6\6";
constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kMostCommentBytes = 0xffff;

std::uint64_t number_at(ByteView bytes, std::size_t at, std::size_t width) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < width; ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return number;
}

// Of the zip64 end that a locator points to; 0 if it does not.
std::uint64_t claimed_by_end64(const FilePart& part, ByteView locator) {
  const std::uint64_t begin = number_at(locator, 8, 8);
  if (begin > part.bytes || part.bytes - begin < kEnd64Bytes) return 0;
  const Bytes end = read_at(part.fd, part.begin + begin, kEnd64Bytes, "reading the end of a zip archive");
  return end.size() == kEnd64Bytes && end.starts_with(kEnd64) ? number_at(end, 32, 8) : 0;
}

}  // namespace

std::uint64_t claimed_zip_entries(const FilePart& part) {
  const std::uint64_t count = std::min(part.bytes, kMostCommentBytes + kEndBytes + kLocatorBytes);
  const Bytes tail = read_at(part.fd, part.begin + part.bytes - count, count, "reading the end of a zip archive");
  std::uint64_t most = 0;
  for (std::size_t at = tail.find(kEnd); at != Bytes::npos; at = tail.find(kEnd, at + 1)) {
    if (tail.size() - at < kEndBytes) break;
    if (number_at(tail, at + 4, 4) != 0) continue;  // of several disks, which libzip does not read, or no end at all
    const ByteView before = ByteView(tail).substr(0, at);
    const ByteView locator = before.substr(at - std::min<std::size_t>(at, kLocatorBytes));
    const bool has_end64 = locator.size() == kLocatorBytes && locator.starts_with(kLocator);
    most = std::max(most, has_end64 ? claimed_by_end64(part, locator) : number_at(tail, at + 10, 2));
  }
  return most;
}

}  // namespace lockstep::internal
