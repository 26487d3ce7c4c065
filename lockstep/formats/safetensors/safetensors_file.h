// Safetensors files with an integrity record. tensors -> write_safetensors -> file -> SafetensorsReader -> tensors.
// Any safetensors program can read them. The record is a set of strings in the file's metadata, all named "lockstep.*":
// one digest per tensor, and one over the header, computed with its own digits as zeros. So every byte of the file is
// covered. It detects damage; it does not prove who wrote the file.
// Not thread-safe. Blocks for disk I/O. Error{corrupt_data} names file, tensor, position, expected and found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/formats/safetensors/safetensors_header.h"

namespace lockstep {

struct TensorBytes {
  std::string name;
  std::string dtype;  // as in safetensors_element_size()
  std::vector<std::int64_t> shape;
  ByteSpan bytes;
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> digests = {};  // by tensor
};
// Replaces `path` atomically (see AtomicFile). Error{invalid_argument}: names, types or sizes that cannot be stored,
// metadata names that begin with "lockstep.".
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata,
                              DigestKind digest = DigestKind::xxh3_128);

// A tensor whose bytes need not be in memory together.
struct StreamedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  // Gives all bytes to its argument, from first to last, in pieces of any size. Called once.
  std::function<void(const std::function<void(ByteSpan)>&)> bytes;
};
// The same, one tensor after the other, in the order of lay_out().
WrittenFile stream_safetensors(const std::filesystem::path& path, std::span<const StreamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata,
                               DigestKind digest = DigestKind::xxh3_128);

enum class Integrity {
  required,    // refuse a file without an integrity record: the default, since damage could have hidden the record
  if_present,  // for files that other programs wrote
};

class SafetensorsReader {
 public:
  // Reads and checks the header. Error{invalid_argument}: no such file, or one of another kind, which the error names.
  explicit SafetensorsReader(const std::filesystem::path& path, Integrity integrity = Integrity::required);
  // The same for an open file; the path is for messages.
  SafetensorsReader(const std::filesystem::path& path, internal::OpenFile file, Integrity integrity);

  // Tensors, and the metadata without the integrity record. A tensor's end is never beyond the end of the file.
  const SafetensorsHeader& header() const { return header_; }
  bool has_digests() const { return header_is_verified_; }
  // As in the integrity record; empty if there is none.
  std::string digest(const TensorEntry& entry) const;
  // REQUIRES: `entry` is one of header().tensors, and `out` has its size. Verifies the digest.
  void read(const TensorEntry& entry, MutableByteSpan out) const;

 private:
  friend class TensorStream;
  void check_digest(const TensorEntry& entry, const std::string& found) const;
  void refuse_other_kinds() const;
  void read_header(Integrity integrity);
  void verify_header_digest(const std::string& prefix_and_json);
  void take_integrity_record(Integrity integrity);
  void read_at(std::uint64_t offset, MutableByteSpan out) const;

  std::filesystem::path path_;
  internal::UniqueFd file_;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t data_offset_ = 0;
  SafetensorsHeader header_;
  DigestKind digest_kind_ = DigestKind::xxh3_128;
  std::map<std::string, std::string> digests_;  // by tensor; empty if the file has no integrity record
  bool header_is_verified_ = false;
};

// The bytes of one tensor, from first to last. The call that reads the last of them verifies the digest.
class TensorStream {
 public:
  // REQUIRES: `entry` is one of file.header().tensors. The file outlives the stream.
  TensorStream(const SafetensorsReader& file, const TensorEntry& entry);

  std::uint64_t left() const { return entry_.end - at_; }
  // REQUIRES: out.size() <= left().
  void read(MutableByteSpan out);

 private:
  void end_if_all_is_read();

  const SafetensorsReader& file_;
  const TensorEntry& entry_;
  std::uint64_t at_;
  internal::RunningDigest digest_;
};

}  // namespace lockstep
