// Bytes that may be compressed with gzip, or plain. bytes -> GzipStream -> bytes. Memory is a fixed buffer, independent
// of the data. Blocks as its source does. Not thread-safe.
// Error{corrupt_data} names the source and the offset in the decompressed data: compressed data that are damaged, end
// too early, or have other bytes after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/bytes.h"

namespace lockstep::internal {

// Up to as many bytes as there is space for; 0 at the end.
using ReadBytes = std::function<std::size_t(MutableByteSpan)>;

class GzipStream {
 public:
  GzipStream(std::string name, ReadBytes source);
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream();

  const std::string& name() const { return name_; }
  bool is_compressed() const { return inflate_ != nullptr; }
  std::uint64_t offset() const { return offset_; }  // of the next byte to read

  // Fewer bytes only at the end, when checksums have been compared.
  std::size_t read(MutableByteSpan out);
  [[noreturn]] void throw_damaged(std::uint64_t offset, const std::string& why) const;

 private:
  struct Inflate;
  std::size_t read_plain(MutableByteSpan out);
  std::size_t read_inflated(MutableByteSpan out);
  bool refill();
  void begin_member();

  const std::string name_;
  const ReadBytes source_;
  Bytes buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of bytes read and not yet used
  std::uint64_t offset_ = 0;
  std::unique_ptr<Inflate> inflate_;  // null: the bytes are not compressed
};

}  // namespace lockstep::internal
