// IdxFile reads the array files of MNIST and Fashion-MNIST, plain or gzip-compressed. path -> dimensions -> bytes.
// Blocks for disk reads. Not thread-safe. Nothing is allocated for a size that the file cannot hold, nor for more than
// 1 GiB. Error{invalid_argument}: the file is not there. Error{corrupt_data}: it is truncated, too long, or of another
// kind; the text names the file and the offset in the (decompressed) data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/train/data/gzip_stream.h"

namespace lockstep::internal {

// `name` or `name`.gz in `directory`. Error{invalid_argument} lists the searched names; `advice` says how to get it.
std::filesystem::path find_idx_file(const std::filesystem::path& directory, const std::string& name,
                                    std::string_view advice);

struct IdxSource {
  static IdxSource file(const std::filesystem::path& path);

  std::string name;  // for errors
  ReadBytes read;
  std::uint64_t bytes = 0;  // how many there are, compressed if they are
};

// An array of unsigned bytes, the only element type these data sets use.
class IdxFile {
 public:
  // Reads the header and checks it: any number of items, each of exactly this shape ({28, 28}; {} for labels).
  IdxFile(const std::filesystem::path& path, const std::vector<std::uint32_t>& item_shape);
  // The same of bytes that need not be a file.
  IdxFile(IdxSource source, const std::vector<std::uint32_t>& item_shape);

  const std::vector<std::uint32_t>& dimensions() const { return dimensions_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // Where the elements begin in the decompressed data.
  std::size_t data_offset() const { return 4 + 4 * dimensions_.size(); }
  // Fills `out` with all elements and checks that the file ends there. Call once. REQUIRES: out.size() == size_bytes().
  void read(MutableByteSpan out);

 private:
  void read_header(const std::vector<std::uint32_t>& item_shape, std::uint64_t file_bytes);
  std::uint32_t read_number(std::string_view what);
  void read_exactly(MutableByteSpan out, std::string_view what);

  GzipStream stream_;
  std::vector<std::uint32_t> dimensions_;
  std::size_t size_bytes_ = 0;
};

}  // namespace lockstep::internal
