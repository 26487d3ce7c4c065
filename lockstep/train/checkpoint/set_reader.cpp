#include "lockstep/train/checkpoint/set_reader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/set_directory.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostOpenFiles = 2000;
constexpr std::size_t kLeastOpenFiles = 4;
constexpr int kAttempts = 100;
constexpr const char* kReplaced = "the checkpoint was replaced or removed while it was read; read it again";
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;  // read and checked while it is in the processor's cache

// A part of the process's limit: it has other files, and other ranks may be its threads.
std::size_t most_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeastOpenFiles;
  return std::clamp(static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 4 * kMostOpenFiles) / 4), kLeastOpenFiles,
                    kMostOpenFiles);
}

UniqueFd open_set(const std::filesystem::path& set) {
  UniqueFd directory(::open(set.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) return directory;
  if (errno != ENOENT && errno != ENOTDIR) throw system_error("opening " + set.string(), errno);
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: no such checkpoint", set.string()));
}

Bytes manifest_in(const UniqueFd& directory, const std::filesystem::path& set) {
  const std::string path = (set / kManifestName).string();
  const OpenFile file = open_regular_file_in(directory.get(), kManifestName, path);
  if (file.bytes > ManifestLimits::kBytes)
    throw_corrupt(Origin(path), fmt::format("it is too large: {} bytes", file.bytes));
  return read_at(file.fd.get(), 0, file.bytes, "reading " + path);
}

// Whether the path is another directory now than the one that was opened.
bool is_another(const UniqueFd& directory, const std::filesystem::path& set) {
  struct stat now {};
  struct stat then {};
  return ::fstat(directory.get(), &then) != 0 || ::stat(set.c_str(), &now) != 0 || now.st_ino != then.st_ino ||
         now.st_dev != then.st_dev;
}

// Both of one set, also if another takes its place meanwhile.
std::pair<UniqueFd, Bytes> open_with_manifest(const std::filesystem::path& set) {
  for (int attempt = 1;; ++attempt) {
    UniqueFd directory = open_set(set);
    try {
      Bytes manifest = manifest_in(directory, set);
      return {std::move(directory), std::move(manifest)};
    } catch (const Error&) {
      if (attempt == kAttempts || !is_another(directory, set)) throw;
    }
  }
}

}  // namespace

Bytes SetReader::read_manifest(const std::filesystem::path& set) { return open_with_manifest(set).second; }

SetReader::SetReader(const std::filesystem::path& set) : SetReader(set, open_with_manifest(set)) {}

SetReader::SetReader(const std::filesystem::path& set, std::pair<UniqueFd, Bytes> opened)
    : path_(set),
      directory_(std::move(opened.first)),
      manifest_(parse_manifest(opened.second, Origin((set / kManifestName).string()))),
      files_(manifest_.files.size()) {}

SetReader::SetReader(const std::filesystem::path& set, Manifest manifest) try
    : path_(set), directory_(open_set(set)), manifest_(std::move(manifest)), files_(manifest_.files.size()) {
} catch (const Error& error) {
  if (error.kind() != ErrorKind::invalid_argument) throw;
  throw Error(ErrorKind::corrupt_data, fmt::format("{} ({})", error.what(), kReplaced));
}

bool SetReader::is_replaced() const {
  if (is_another(directory_, path_)) return true;
  try {
    // It may have been before the directory was opened, if somebody else has read the manifest.
    return parse_manifest(manifest_in(directory_, path_), Origin((path_ / kManifestName).string())) != manifest_;
  } catch (const Error&) {
    return false;  // nobody can say
  }
}

template <class Action>
auto SetReader::explained(Action action) const {
  try {
    return action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::corrupt_data || !is_replaced()) throw;
    throw Error(ErrorKind::corrupt_data, fmt::format("{}: {}", path_.string(), kReplaced));
  }
}

OpenFile SetReader::open(const SetFile& file) const {
  const std::string path = (path_ / file.name).string();
  OpenFile open;
  try {
    open = open_regular_file_in(directory_.get(), file.name, path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::invalid_argument) throw;
    throw Error(ErrorKind::corrupt_data, fmt::format("{} (the part of rank {} of a checkpoint of {} ranks)",
                                                     error.what(), file.rank, manifest_.world_size));
  }
  if (open.bytes != file.bytes) {
    throw Error(ErrorKind::corrupt_data,
                fmt::format("{} is damaged: it has {} bytes; expected {}", path, open.bytes, file.bytes));
  }
  return open;
}

void SetReader::check_files() {
  explained([&] {
    for (const SetFile& file : manifest_.files) open_in_any_case(file);
  });
}

SetReader::File& SetReader::opened(std::size_t index) {
  File& file = files_[index];
  file.last_used = ++uses_;
  if (file.reader) return file;
  if (open_count_ >= most_open_files()) close_longest_unused();
  file.reader.emplace(reader_of(manifest_.files[index]));
  ++open_count_;
  const auto& tensors = file.reader->header().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) file.places.emplace(tensors[i].name, i);
  return file;
}

OpenFile SetReader::open_in_any_case(const SetFile& file) {
  for (;;) {
    try {
      return open(file);
    } catch (const Error& error) {
      // Others of the process may have used up its descriptors.
      if (error.kind() != ErrorKind::internal || open_count_ == 0) throw;
      close_longest_unused();
    }
  }
}

SafetensorsReader SetReader::reader_of(const SetFile& file) {
  OpenFile content = open_in_any_case(file);
  ::posix_fadvise(content.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // only a hint: the disk reads further ahead
  try {
    return {path_ / file.name, std::move(content), Integrity::required};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::invalid_argument) throw;
    // It looks like a file of another kind, and says so; here it is a damaged one.
    throw Error(ErrorKind::corrupt_data, error.what());
  }
}

void SetReader::open_files() {
  const std::size_t count = std::min(files_.size(), most_open_files());
  explained([&] {
    for (std::size_t i = 0; i < count; ++i) opened(i);
  });
}

void SetReader::close_longest_unused() {
  File* longest = nullptr;
  for (File& file : files_) {
    if (file.reader && (longest == nullptr || file.last_used < longest->last_used)) longest = &file;
  }
  *longest = File{};
  --open_count_;
}

TensorStream SetReader::stream(const std::string& name, const SetPiece& piece) {
  return explained([&] { return stream_of(name, piece); });
}

TensorStream SetReader::stream_of(const std::string& name, const SetPiece& piece) {
  const SetTensor& tensor = manifest_.tensors.at(name);
  File& file = opened(piece.file);
  const std::string stored = piece_name(name, tensor, piece);
  const auto damaged = [&](const std::string& why) {
    throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: '{}' {}",
                                                     (path_ / manifest_.files[piece.file].name).string(), stored, why));
  };
  const auto place = file.places.find(stored);
  if (place == file.places.end()) damaged("is missing");
  const TensorEntry& entry = file.reader->header().tensors[place->second];
  std::vector<std::int64_t> shape = tensor.shape;
  if (!shape.empty()) shape.front() = piece.end_row - piece.first_row;
  if (entry.dtype != tensor.dtype || entry.shape != shape) {
    damaged(fmt::format("is {}, which differs from the manifest", describe(entry)));
  }
  if (file.reader->digest(entry) != piece.digest) damaged("has a digest that differs from the manifest");
  return {*file.reader, entry};
}

void SetReader::read(const std::string& name, const SetPiece& piece, MutableByteSpan out) {
  explained([&] {
    TensorStream bytes = stream_of(name, piece);
    while (!out.empty()) {
      const std::size_t count = std::min(out.size(), kChunkBytes);
      bytes.read(out.first(count));
      out = out.subspan(count);
    }
  });
}

void SetReader::verify(const std::string& name, const SetPiece& piece) {
  explained([&] { verify(name, piece, [](std::uint64_t) {}); });
}

void SetReader::verify(const std::string& name, const SetPiece& piece,
                       const std::function<void(std::uint64_t)>& progress) {
  std::array<std::byte, kChunkBytes> buffer;
  TensorStream bytes = stream_of(name, piece);
  while (bytes.left() != 0) {
    const std::size_t count = std::min<std::uint64_t>(bytes.left(), buffer.size());
    bytes.read(std::span(buffer).first(count));
    progress(count);
  }
}

void SetReader::verify(const std::function<void(std::uint64_t)>& progress) {
  explained([&] { verify_all(progress); });
}

void SetReader::verify_all(const std::function<void(std::uint64_t)>& progress) {
  check_files();
  using Listed = std::pair<const std::string*, const SetPiece*>;
  std::vector<std::vector<Listed>> pieces(files_.size());  // of each file
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const SetPiece& piece : tensor.pieces) pieces[piece.file].emplace_back(&name, &piece);
  }
  std::uint64_t read_so_far = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::size_t found = opened(i).places.size();
    if (found != pieces[i].size()) {
      throw Error(ErrorKind::corrupt_data,
                  fmt::format("{} is damaged: it has {} tensors, but the manifest lists {}",
                              (path_ / manifest_.files[i].name).string(), found, pieces[i].size()));
    }
    for (const auto& [name, piece] : pieces[i]) {
      verify(*name, *piece, [&](std::uint64_t count) {
        read_so_far += count;
        if (progress) progress(read_so_far);
      });
    }
  }
}

}  // namespace lockstep::internal
