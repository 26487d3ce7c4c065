// Writes a zip archive as PyTorch does: entries are not compressed, their data begins at multiples of 64, and their
// CRC-32 follows them. bytes -> entry -> AtomicFile. Memory grows with the number of entries only; beyond 4 GiB it uses
// zip64. Not thread-safe; blocks and fails as AtomicFile does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/bytes.h"
#include "lockstep/formats/zip_headers.h"

namespace lockstep::internal {

class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  ZipWriter(const ZipWriter&) = delete;
  ZipWriter& operator=(const ZipWriter&) = delete;

  // Begins an entry, whose bytes are then written. REQUIRES: exactly `bytes` of them, and then end().
  void begin(const std::string& name, std::uint64_t bytes);
  void write(ByteSpan bytes);
  void end();
  void add(const std::string& name, ByteView bytes);
  // The directory. Call once, last; the file is then to be published.
  void finish();

 private:
  void emit(const std::string& bytes);

  AtomicFile& file_;
  std::uint64_t written_ = 0;
  std::vector<ZipRecord> entries_;
};

}  // namespace lockstep::internal
