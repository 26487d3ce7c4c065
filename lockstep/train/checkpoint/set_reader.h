// SetReader reads a checkpoint set: its manifest, and the tensors in its files. set -> manifest -> pieces. Each byte is
// checked against the manifest before it is used. Names lead to no other directory, and no link is followed.
// Files are opened when they are needed; the soft limit of the process decides how many are open at a time. A set that
// is replaced or removed while it is read is never mixed with the new one: open files can still be read, and a file
// that cannot be opened is an error that says so.
// Not thread-safe. Blocks for disk I/O. Error{invalid_argument}: there is no such set. Error{corrupt_data} names the
// file, the tensor, its position, expected and found. Error{internal}: a file cannot be opened or read, so it is
// unknown whether it is damaged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/train/checkpoint/manifest.h"

namespace lockstep::internal {

class SetReader {
 public:
  explicit SetReader(const std::filesystem::path& set);
  // The same with a manifest that was read before. Error{corrupt_data} if the set has been removed since.
  SetReader(const std::filesystem::path& set, Manifest manifest);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  // The manifest as it is stored.
  static Bytes read_manifest(const std::filesystem::path& set);

  // Error{corrupt_data} if a file is missing or has another size. Reads no data.
  void check_files();
  // Opens the files, all that may be open at a time, so that they can be read even after the set is removed.
  void open_files();
  // REQUIRES: `name` is one of the manifest's tensors, `piece` one of its pieces, and `out` has the piece's size.
  void read(const std::string& name, const SetPiece& piece, MutableByteSpan out);
  // The same in parts of any size. It may be used until the next call.
  TensorStream stream(const std::string& name, const SetPiece& piece);
  // Reads a piece, in bounded memory.
  void verify(const std::string& name, const SetPiece& piece);
  // Reads everything. progress: bytes so far.
  void verify(const std::function<void(std::uint64_t)>& progress = {});

 private:
  struct File {
    std::optional<SafetensorsReader> reader;
    std::map<std::string, std::size_t> places = {};  // of its header's tensors
    std::uint64_t last_used = 0;
  };
  SetReader(const std::filesystem::path& set, std::pair<UniqueFd, Bytes> opened);
  OpenFile open(const SetFile& file) const;
  // Whether another set, or none, has taken this one's place since.
  bool is_replaced() const;
  // Runs it. If the set was replaced meanwhile, an error of damage says so instead.
  template <class Action>
  auto explained(Action action) const;
  File& opened(std::size_t index);
  // Closes another file where no more can be open.
  OpenFile open_in_any_case(const SetFile& file);
  SafetensorsReader reader_of(const SetFile& file);
  void close_longest_unused();
  void verify_all(const std::function<void(std::uint64_t)>& progress);
  TensorStream stream_of(const std::string& name, const SetPiece& piece);
  void verify(const std::string& name, const SetPiece& piece, const std::function<void(std::uint64_t)>& progress);

  const std::filesystem::path path_;
  UniqueFd directory_;
  const Manifest manifest_;
  std::vector<File> files_;
  std::size_t open_count_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace lockstep::internal
