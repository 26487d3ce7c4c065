#include "tools/foreign_sources.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/formats/distributed_checkpoint.h"
#include "lockstep/formats/pickle_text.h"
#include "lockstep/formats/safetensors/file_kind.h"
#include "lockstep/formats/sharded_safetensors.h"
#include "lockstep/formats/torch_file.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "tools/checkpoint_places.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{64} << 20;

// Tensors beyond this machine's memory are not tried: a shape may be anything, if an element is expanded.
void refuse_beyond_memory(const std::string& name, std::uint64_t bytes) {
  if (bytes <= machine_memory_bytes()) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("tensor '{}' needs {} bytes, but this machine has {} bytes of memory", name, bytes,
                          machine_memory_bytes()));
}

std::vector<std::byte> room_for(const std::string& name, std::uint64_t bytes) {
  refuse_beyond_memory(name, bytes);
  try {
    return std::vector<std::byte>(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("tensor '{}' takes {} bytes, and not enough memory is free", name, bytes));
  }
}

// Of a tensor that is read as a whole: one that lies in several pieces.
class WholeStream : public ByteStream {
 public:
  template <class Read>
  WholeStream(const std::string& name, std::uint64_t bytes, Read read) : bytes_(room_for(name, bytes)) {
    read(MutableByteSpan(bytes_));
  }
  std::uint64_t left() const override { return bytes_.size() - at_; }
  void read(MutableByteSpan out) override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), out.size(), out.begin());
    at_ += out.size();
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

// Of a tensor that is transposed or expanded: slices of its outer dimensions, each small, one after the other.
class SlicedStream : public ByteStream {
 public:
  SlicedStream(const TorchFile& file, const TorchTensor& tensor, const std::string& name)
      : file_(file), tensor_(tensor), left_(tensor.bytes), row_bytes_(tensor.bytes) {
    refuse_beyond_memory(name, tensor.bytes);
    while (row_bytes_ > kSliceBytes && outer_ < tensor.shape.size()) {
      row_bytes_ /= static_cast<std::uint64_t>(tensor.shape[outer_++]);
    }
  }
  std::uint64_t left() const override { return left_; }
  void read(MutableByteSpan out) override {
    while (!out.empty()) {
      if (at_ == slice_.size()) next_slice();
      const std::size_t count = std::min(out.size(), slice_.size() - at_);
      std::copy_n(slice_.begin() + static_cast<std::ptrdiff_t>(at_), count, out.begin());
      at_ += count;
      left_ -= count;
      out = out.subspan(count);
    }
  }

 private:
  // As many rows along the last outer dimension as a slice holds.
  void next_slice() {
    TorchTensor part = tensor_;
    std::uint64_t rows = 1;
    if (outer_ > 0) {
      std::uint64_t index = next_row_;
      for (std::size_t d = outer_; d-- > 0;) {
        const auto size = static_cast<std::uint64_t>(tensor_.shape[d]);
        const std::uint64_t at = index % size;
        part.offset += static_cast<std::int64_t>(at) * tensor_.strides[d];
        if (d + 1 == outer_) rows = std::clamp<std::uint64_t>(kSliceBytes / row_bytes_, 1, size - at);
        index /= size;
      }
      const auto inner = static_cast<std::ptrdiff_t>(outer_) - 1;
      part.shape.erase(part.shape.begin(), part.shape.begin() + inner);
      part.strides.erase(part.strides.begin(), part.strides.begin() + inner);
      part.shape.front() = static_cast<std::int64_t>(rows);
    }
    part.bytes = rows * row_bytes_;
    next_row_ += rows;
    slice_.resize(part.bytes);
    file_.read(part, slice_);
    at_ = 0;
  }

  const TorchFile& file_;
  const TorchTensor& tensor_;
  std::uint64_t left_;
  std::uint64_t row_bytes_;  // of all dimensions but the outer ones
  std::size_t outer_ = 0;    // dimensions
  std::uint64_t next_row_ = 0;
  std::vector<std::byte> slice_;
  std::size_t at_ = 0;
};

class TorchStream : public ByteStream {
 public:
  TorchStream(const TorchFile& file, const TorchTensor& tensor) : file_(file), tensor_(tensor) {}
  std::uint64_t left() const override { return tensor_.bytes - at_; }
  void read(MutableByteSpan out) override {
    file_.read(tensor_, at_, out);
    at_ += out.size();
  }

 private:
  const TorchFile& file_;
  const TorchTensor& tensor_;
  std::uint64_t at_ = 0;
};

// Of files of torch.save: tensors by their names, and other values.
class TorchTensors {
 public:
  // The file lives as long as this. Returns whether it has tensors. prefix: of the names, or empty.
  bool add(const TorchFile& file, const std::string& prefix, SourceFacts& facts,
           std::map<std::string, SourceTensor>& tensors) {
    const std::size_t before = found_.size();
    for (const auto& [below, value] : flatten(file.root())) {
      const bool is_tensor = value.is_tensor();
      std::string name = prefix.empty() || below.empty() ? prefix + below : fmt::format("{}.{}", prefix, below);
      if (name.empty()) name = is_tensor ? "tensor" : "value";
      if (!is_tensor) {
        facts.metadata[name] = value_text(value);
        continue;
      }
      TorchTensor tensor = file.tensor(value);
      if (!tensors.emplace(name, SourceTensor{tensor.dtype, tensor.shape, tensor.bytes}).second) {
        throw Error(ErrorKind::invalid_argument, fmt::format("{}: two tensors have the name '{}'", file.name(), name));
      }
      found_.emplace(name, Found{&file, std::move(tensor)});
    }
    return found_.size() != before;
  }
  // nullptr: there is no such tensor.
  std::unique_ptr<ByteStream> stream(const std::string& name) const {
    const auto found = found_.find(name);
    if (found == found_.end()) return nullptr;
    const auto& [file, tensor] = found->second;
    if (is_row_major(tensor)) return std::make_unique<TorchStream>(*file, tensor);
    return std::make_unique<SlicedStream>(*file, tensor, name);
  }

 private:
  struct Found {
    const TorchFile* file;
    TorchTensor tensor;
  };
  std::map<std::string, Found> found_;
};

class TorchSource : public TensorSource {
 public:
  explicit TorchSource(const std::filesystem::path& path) : file_(path) {
    facts_ = {.kind = "torch",
              .bytes = std::filesystem::file_size(path),
              .modified_seconds = modified_seconds_of(path),
              .step = {},
              .has_digests = file_.has_checksums()};
    found_.add(file_, "", facts_, tensors_);
  }
  std::unique_ptr<ByteStream> stream(const std::string& name) override { return found_.stream(name); }

 private:
  TorchFile file_;
  TorchTensors found_;
};

class DistributedSource : public TensorSource {
 public:
  explicit DistributedSource(const std::filesystem::path& path) : checkpoint_(path) {
    facts_ = {.kind = "dcp", .files = 0, .modified_seconds = modified_seconds_of(path / kMetadata), .step = {}};
    for (const auto& each : std::filesystem::directory_iterator(path)) {
      if (!each.is_regular_file()) continue;
      facts_.bytes += each.file_size();
      facts_.files += each.path().extension() == ".distcp" ? 1 : 0;
    }
    for (const DistributedTensor& tensor : checkpoint_.tensors()) {
      tensors_[tensor.name] = {.dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.bytes};
      found_[tensor.name] = &tensor;
    }
    for (const std::string& name : checkpoint_.value_names()) {
      auto file = std::make_unique<TorchFile>(checkpoint_.read_value(name));
      if (in_values_.add(*file, name, facts_, tensors_)) values_.push_back(std::move(file));
    }
  }
  std::unique_ptr<ByteStream> stream(const std::string& name) override {
    if (auto stream = in_values_.stream(name)) return stream;
    const DistributedTensor& tensor = *found_.at(name);
    return std::make_unique<WholeStream>(name, tensor.bytes,
                                         [&](MutableByteSpan out) { checkpoint_.read(tensor, out); });
  }

  static constexpr const char* kMetadata = ".metadata";

 private:
  DistributedCheckpoint checkpoint_;
  std::map<std::string, const DistributedTensor*> found_;
  std::vector<std::unique_ptr<TorchFile>> values_;  // that have tensors in them
  TorchTensors in_values_;
};

class ShardedSource : public TensorSource {
 public:
  explicit ShardedSource(const std::filesystem::path& path) : reader_(path) {
    facts_ = {.kind = "index", .modified_seconds = modified_seconds_of(path), .step = {}, .has_digests = false};
    facts_.metadata = reader_.metadata();
    std::map<std::string, std::uint64_t> files;
    for (const ShardedTensor& each : reader_.tensors()) {
      const std::uint64_t bytes = each.entry.end - each.entry.begin;
      tensors_[each.entry.name] = {.dtype = each.entry.dtype, .shape = each.entry.shape, .bytes = bytes};
      found_[each.entry.name] = &each;
      files.emplace(each.file, std::filesystem::file_size(path.parent_path() / each.file));
    }
    facts_.files = files.size();
    for (const auto& [name, bytes] : files) facts_.bytes += bytes;
  }
  std::unique_ptr<ByteStream> stream(const std::string& name) override {
    return std::make_unique<FileStream>(reader_.stream(*found_.at(name)));
  }

 private:
  ShardedSafetensorsReader reader_;
  std::map<std::string, const ShardedTensor*> found_;
};

FileKind kind_of(const std::filesystem::path& path) {
  const OpenFile file = open_regular_file(path.string());
  return recognise_file(
      read_at(file.fd.get(), 0, std::min<std::uint64_t>(kFileKindBytes, file.bytes), "reading " + path.string()));
}

}  // namespace

std::unique_ptr<TensorSource> open_foreign_tensors(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const bool is_distributed = !std::filesystem::exists(path / kManifestName, error) &&
                                std::filesystem::exists(path / DistributedSource::kMetadata, error);
    return is_distributed ? std::make_unique<DistributedSource>(path) : nullptr;
  }
  const FileKind kind = kind_of(path);
  switch (kind) {
    case FileKind::torch_archive:
    case FileKind::torch_legacy: return std::make_unique<TorchSource>(path);
    case FileKind::json: return std::make_unique<ShardedSource>(path);
    case FileKind::safetensors: return nullptr;
    // By its name it is a checkpoint that has lost its beginning.
    case FileKind::unknown:
    case FileKind::empty:
    case FileKind::pickle:  // as a damaged header of some lengths begins, too
      if (path.extension() == ".safetensors") return nullptr;
      [[fallthrough]];
    default:
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("{}: {} {}", kNotACheckpoint, path.string(), how_to_read(kind)));
  }
}

}  // namespace lockstep::tools
