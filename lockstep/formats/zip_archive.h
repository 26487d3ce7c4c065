// A zip archive whose entries are not compressed, as PyTorch writes them, in a file or a part of one. file -> directory
// -> entries -> bytes, checked against their CRC-32. Memory grows with the directory only. Archives in which entries
// overlap, come twice, or claim more than the file has are refused when it is opened; compressed and encrypted entries
// when they are read. libzip reads the directory.
// Not thread-safe. Blocks for disk I/O. Error{corrupt_data} names the file and the entry.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// A run of bytes of a file that is open.
struct FilePart {
  int fd = -1;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

struct ZipEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t index = 0;
  bool is_plain = true;  // neither compressed nor encrypted
};

class ZipArchive {
 public:
  // `origin` names the file in errors. The descriptor must stay open as long as this object.
  ZipArchive(const FilePart& part, std::string origin);
  ZipArchive(const ZipArchive&) = delete;
  ZipArchive& operator=(const ZipArchive&) = delete;
  ~ZipArchive();

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;  // nullptr if there is none
  // The whole entry, checked. Error{invalid_argument} if it is larger than `limit`.
  Bytes read_whole(const ZipEntry& entry, std::uint64_t limit) const;
  // REQUIRES: `out` has the size of the entry. Checked.
  void read_whole(const ZipEntry& entry, MutableByteSpan out) const;
  // A part of an entry. The first such call for an entry reads all of it, to check it.
  void read(const ZipEntry& entry, std::uint64_t offset, MutableByteSpan out) const;

 private:
  class Stream;
  struct Source;

  void list_entries(std::uint64_t file_bytes);
  void verify(const ZipEntry& entry) const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::string origin_;
  std::unique_ptr<Source> source_;
  std::vector<ZipEntry> entries_;
  std::vector<std::size_t> by_name_;         // indices of entries
  mutable std::vector<bool> is_verified_;    // by entry
  mutable std::unique_ptr<Stream> reading_;  // the entry that read() was called for last
};

}  // namespace lockstep::internal
