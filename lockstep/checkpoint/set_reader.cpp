#include "lockstep/checkpoint/set_reader.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/checkpoint/set_directory.h"

namespace lockstep::internal {
namespace {

UniqueFd open_set(const std::filesystem::path& set) {
  UniqueFd directory(::open(set.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) return directory;
  if (errno != ENOENT && errno != ENOTDIR) throw system_error("opening " + set.string(), errno);
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: no such checkpoint", set.string()));
}

std::uint64_t bytes_in(const SetTensor& tensor, const Piece& piece) {
  return tensor.row_bytes() * static_cast<std::uint64_t>(piece.end_row - piece.first_row);
}

}  // namespace

Bytes SetReader::read_manifest(const std::filesystem::path& set) {
  const UniqueFd directory = open_set(set);
  const std::string path = (set / kManifestName).string();
  const OpenFile file = open_regular_file_in(directory.get(), kManifestName, path);
  if (file.bytes > ManifestLimits::kBytes) throw_corrupt(Origin(path), fmt::format("it has {} bytes", file.bytes));
  return read_at(file.fd.get(), 0, file.bytes, "reading " + path);
}

SetReader::SetReader(const std::filesystem::path& set)
    : SetReader(set, [&] {
        const std::string path = (set / kManifestName).string();
        return parse_manifest(read_manifest(set), Origin(path));
      }()) {}

SetReader::SetReader(const std::filesystem::path& set, Manifest manifest)
    : path_(set), directory_(open_set(set)), manifest_(std::move(manifest)), files_(manifest_.files.size()) {}

OpenFile SetReader::open(const SetFile& file) const {
  const std::string path = (path_ / file.name).string();
  OpenFile open;
  try {
    open = open_regular_file_in(directory_.get(), file.name, path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::invalid_argument) throw;
    throw Error(ErrorKind::corrupt_data, fmt::format("{} (the part of rank {} of a checkpoint of {})", error.what(),
                                                     file.rank, manifest_.world_size));
  }
  if (open.bytes != file.bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{} is damaged: it has {} bytes, {} were expected", path, open.bytes, file.bytes));
  }
  return open;
}

void SetReader::check_files() const {
  for (const SetFile& file : manifest_.files) open(file);
}

SetReader::File& SetReader::opened(std::size_t index) {
  File& file = files_[index];
  if (file.reader) return file;
  const SetFile& listed = manifest_.files[index];
  file.reader.emplace(path_ / listed.name, open(listed), Integrity::required);
  const auto& tensors = file.reader->header().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) file.places.emplace(tensors[i].name, i);
  return file;
}

void SetReader::read(const std::string& name, const Piece& piece, MutableByteSpan out) {
  const SetTensor& tensor = manifest_.tensors.at(name);
  File& file = opened(piece.file);
  const std::string where = (path_ / manifest_.files[piece.file].name).string();
  const std::string stored = piece_name(name, tensor, piece);
  const auto damaged = [&](const std::string& why) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: '{}' {}", where, stored, why));
  };
  const auto place = file.places.find(stored);
  if (place == file.places.end()) damaged("is not there");
  const TensorEntry& entry = file.reader->header().tensors[place->second];
  std::vector<std::int64_t> shape = tensor.shape;
  if (!shape.empty()) shape.front() = piece.end_row - piece.first_row;
  if (entry.dtype != tensor.dtype || entry.shape != shape) {
    damaged(fmt::format("is {}, which the manifest does not say", describe(entry)));
  }
  if (file.reader->digest(entry) != piece.digest) damaged("has another digest than in the manifest");
  file.reader->read(entry, out);
}

void SetReader::verify(const std::function<void(std::uint64_t)>& progress) {
  check_files();
  std::vector<std::size_t> expected(manifest_.files.size());
  std::uint64_t read_so_far = 0;
  std::vector<std::byte> buffer;
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      buffer.resize(bytes_in(tensor, piece));
      read(name, piece, buffer);
      ++expected[piece.file];
      read_so_far += buffer.size();
      if (progress) progress(read_so_far);
    }
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::size_t found = opened(i).places.size();
    if (found == expected[i]) continue;
    throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: it has {} tensors, the manifest says {}",
                                                     (path_ / manifest_.files[i].name).string(), found, expected[i]));
  }
}

}  // namespace lockstep::internal
