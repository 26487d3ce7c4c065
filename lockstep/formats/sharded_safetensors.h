// Models of many safetensors files with an index, as Hugging Face writes them: model.safetensors.index.json says which
// tensor is in which of model-00001-of-00003.safetensors, ... Only files in the directory of the index are opened.
// index -> ShardedSafetensorsReader -> tensors, and back. Not thread-safe. Blocks for disk I/O. Errors as of
// SafetensorsReader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/formats/sibling_file.h"

namespace lockstep {

struct ShardedTensor {
  TensorEntry entry;
  std::string file;
};

struct SafetensorsIndex {
  std::map<std::string, std::string> files = {};     // by tensor
  std::map<std::string, std::string> metadata = {};  // numbers as text
};

class ShardedSafetensorsReader {
 public:
  // Reads the index and the headers of all files. Error{corrupt_data}: a file lacks a tensor that it should have.
  explicit ShardedSafetensorsReader(const std::filesystem::path& index, Integrity integrity = Integrity::if_present);

  // By name.
  const std::vector<ShardedTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return index_.metadata; }
  // REQUIRES: `tensor` is one of tensors(), and `out` has its size.
  void read(const ShardedTensor& tensor, MutableByteSpan out) const;
  // The same, piece by piece; until the next call of either.
  TensorStream stream(const ShardedTensor& tensor) const;

 private:
  const SafetensorsReader& file_of(const ShardedTensor& tensor) const;
  SafetensorsReader open(const std::string& file) const;

  internal::SiblingFiles files_;
  Integrity integrity_;
  SafetensorsIndex index_;
  std::vector<ShardedTensor> tensors_;
  mutable std::unique_ptr<const SafetensorsReader> reading_;  // one file at a time, for there may be very many
  mutable std::string reading_name_;
};

// Writes <stem>-00001-of-0000n.safetensors, ... and then <stem>.safetensors.index.json into the directory, each of them
// atomically: until the last is there, readers of a new directory find no index. A file has at most `most_bytes` of
// tensors, or one tensor that is larger. `metadata` goes into the index. Returns the path of the index.
std::filesystem::path write_sharded_safetensors(const std::filesystem::path& directory,
                                                std::span<const TensorBytes> tensors, std::uint64_t most_bytes,
                                                const std::map<std::string, std::string>& metadata = {},
                                                const std::string& stem = "model");

namespace internal {

// Error{corrupt_data}, with `origin`.
SafetensorsIndex parse_safetensors_index(ByteView json, const std::string& origin);

// How many tensors go into each file, in order.
std::vector<std::size_t> plan_safetensors_shards(std::span<const TensorBytes> tensors, std::uint64_t most_bytes);

}  // namespace internal
}  // namespace lockstep
