#include "lockstep/formats/zip_archive.h"

#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 20;
constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kDirectoryEntryBytes = 46;

}  // namespace

// The source that libzip reads from, and its archive.
struct ZipArchive::Source {
  FilePart part = {};
  std::uint64_t position = 0;
  zip_error_t error = {};
  zip_t* archive = nullptr;

  explicit Source(const FilePart& of) : part(of) { ::zip_error_init(&error); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (archive != nullptr) ::zip_discard(archive);
    ::zip_error_fini(&error);
  }

  zip_int64_t read(void* data, std::uint64_t length) {
    length = std::min(length, part.bytes - position);
    const ssize_t count = read_at(part.fd, part.begin + position, {static_cast<std::byte*>(data), length});
    if (count < 0) {
      ::zip_error_set(&error, ZIP_ER_READ, errno);
      return -1;
    }
    position += static_cast<std::uint64_t>(count);
    return count;
  }

  zip_int64_t seek(void* data, std::uint64_t length) {
    const zip_int64_t target = ::zip_source_seek_compute_offset(position, part.bytes, data, length, &error);
    if (target < 0) return -1;
    position = static_cast<std::uint64_t>(target);
    return 0;
  }

  static zip_int64_t call(void* self, void* data, zip_uint64_t length, zip_source_cmd_t command) {
    Source& source = *static_cast<Source*>(self);
    switch (command) {
      case ZIP_SOURCE_OPEN: source.position = 0; return 0;
      case ZIP_SOURCE_READ: return source.read(data, length);
      case ZIP_SOURCE_SEEK: return source.seek(data, length);
      case ZIP_SOURCE_TELL: return static_cast<zip_int64_t>(source.position);
      case ZIP_SOURCE_STAT: {
        auto* status = static_cast<zip_stat_t*>(data);
        ::zip_stat_init(status);
        status->valid = ZIP_STAT_SIZE;
        status->size = source.part.bytes;
        return sizeof(zip_stat_t);
      }
      case ZIP_SOURCE_ERROR: return ::zip_error_to_data(&source.error, data, length);
      case ZIP_SOURCE_CLOSE:
      case ZIP_SOURCE_FREE: return 0;
      case ZIP_SOURCE_SUPPORTS:
        return ::zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
                                                ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
                                                ZIP_SOURCE_SUPPORTS, -1);
      default: ::zip_error_set(&source.error, ZIP_ER_OPNOTSUPP, 0); return -1;
    }
  }
};

// An entry that is open for reading.
class ZipArchive::Stream {
 public:
  Stream(const ZipArchive& archive, const ZipEntry& entry)
      : archive_(archive),
        entry_(entry),
        file_(::zip_fopen_index(archive.source_->archive, entry.index, ZIP_FL_UNCHANGED)) {
    if (file_ == nullptr) archive.refuse(problem(::zip_strerror(archive.source_->archive)));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { ::zip_fclose(file_); }

  const ZipEntry& entry() const { return entry_; }

  void seek(std::uint64_t offset) {
    if (offset == position_) return;
    if (::zip_fseek(file_, static_cast<zip_int64_t>(offset), SEEK_SET) != 0) fail();
    position_ = offset;
  }
  void read(MutableByteSpan out) {
    while (!out.empty()) {
      const zip_int64_t count = ::zip_fread(file_, out.data(), out.size());
      if (count < 0) fail();
      if (count == 0) archive_.refuse(problem(fmt::format("it ends at byte {}", position_)));
      position_ += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
  }
  // An entry that is read from its beginning is checked at its end.
  void expect_end() {
    std::byte more;
    const zip_int64_t count = ::zip_fread(file_, &more, 1);
    if (count < 0) fail();
    if (count > 0) archive_.refuse(problem(fmt::format("it has more than {} bytes", entry_.bytes)));
  }

 private:
  [[noreturn]] void fail() const { archive_.refuse(problem(::zip_file_strerror(file_))); }
  std::string problem(const std::string& why) const {
    return fmt::format("entry {} of {} bytes: {}", shown(entry_.name), entry_.bytes, why);
  }

  const ZipArchive& archive_;
  const ZipEntry& entry_;
  zip_file_t* file_;
  std::uint64_t position_ = 0;
};

ZipArchive::ZipArchive(const FilePart& part, std::string origin)
    : origin_(std::move(origin)), source_(std::make_unique<Source>(part)) {
  zip_error_t error;
  ::zip_error_init(&error);
  zip_source_t* source = ::zip_source_function_create(Source::call, source_.get(), &error);
  if (source != nullptr) source_->archive = ::zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error);
  if (source_->archive == nullptr) {
    const std::string why = ::zip_error_strerror(&error);
    if (source != nullptr) ::zip_source_free(source);
    ::zip_error_fini(&error);
    refuse(fmt::format("the zip archive's directory cannot be read ({}); the file may be truncated", why));
  }
  ::zip_error_fini(&error);
  list_entries(part.bytes);
}

ZipArchive::~ZipArchive() = default;

void ZipArchive::refuse(const std::string& why) const {
  throw Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: {}", origin_, why));
}

void ZipArchive::list_entries(std::uint64_t file_bytes) {
  const zip_int64_t count = ::zip_get_num_entries(source_->archive, ZIP_FL_UNCHANGED);
  if (count < 0 || static_cast<std::uint64_t>(count) > kMostEntries) {
    refuse(fmt::format("it has {} entries; the limit is {}", count, kMostEntries));
  }
  std::uint64_t taken = 0;
  for (std::uint64_t index = 0; index < static_cast<std::uint64_t>(count); ++index) {
    zip_stat_t status;
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (::zip_stat_index(source_->archive, index, ZIP_FL_UNCHANGED | ZIP_FL_ENC_RAW, &status) != 0 ||
        (status.valid & kNeeded) != kNeeded) {
      refuse(fmt::format("entry {} of its directory cannot be read", index));
    }
    const std::uint64_t around = kLocalHeaderBytes + kDirectoryEntryBytes + 2 * std::string_view(status.name).size();
    if (status.comp_size > file_bytes || around > file_bytes || taken > file_bytes - status.comp_size - around) {
      refuse(fmt::format("its entries take more than its {} bytes: they overlap", file_bytes));
    }
    taken += status.comp_size + around;
    const bool is_encrypted =
        (status.valid & ZIP_STAT_ENCRYPTION_METHOD) != 0 && status.encryption_method != ZIP_EM_NONE;
    const bool is_plain = status.comp_method == ZIP_CM_STORE && !is_encrypted;
    if (is_plain && status.size != status.comp_size) {
      refuse(fmt::format("entry {} has both {} and {} bytes", shown(status.name), status.size, status.comp_size));
    }
    entries_.push_back({.name = status.name, .bytes = status.size, .index = index, .is_plain = is_plain});
    by_name_.push_back(index);
  }
  std::ranges::sort(by_name_, {}, [this](std::size_t index) -> const std::string& { return entries_[index].name; });
  const auto twice = std::ranges::adjacent_find(
      by_name_, {}, [this](std::size_t index) -> const std::string& { return entries_[index].name; });
  if (twice != by_name_.end()) refuse(fmt::format("it has two entries with the name {}", shown(entries_[*twice].name)));
  is_verified_.resize(entries_.size());
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [this](std::size_t index) -> std::string_view { return entries_[index].name; });
  return found == by_name_.end() || entries_[*found].name != name ? nullptr : &entries_[*found];
}

Bytes ZipArchive::read_whole(const ZipEntry& entry, std::uint64_t limit) const {
  if (entry.bytes > limit) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: entry {} has {} bytes; the limit is {}", origin_,
                                                         shown(entry.name), entry.bytes, limit));
  }
  Bytes bytes;
  if (entry.is_plain) bytes.resize(entry.bytes);  // else it is refused
  read_whole(entry, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void ZipArchive::read_whole(const ZipEntry& entry, MutableByteSpan out) const {
  if (!entry.is_plain) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: entry {} is compressed or encrypted, which PyTorch never does; unpack the archive and "
                            "pack it again with 'zip -0 -r'",
                            origin_, shown(entry.name)));
  }
  Stream stream(*this, entry);
  stream.read(out);
  stream.expect_end();
  is_verified_[entry.index] = true;
}

void ZipArchive::verify(const ZipEntry& entry) const {
  if (!entry.is_plain) return read_whole(entry, MutableByteSpan());
  std::vector<std::byte> chunk(std::min<std::uint64_t>(kChunkBytes, entry.bytes));
  Stream stream(*this, entry);
  for (std::uint64_t done = 0; done < entry.bytes; done += chunk.size()) {
    stream.read(MutableByteSpan(chunk).first(std::min<std::uint64_t>(chunk.size(), entry.bytes - done)));
  }
  stream.expect_end();
  is_verified_[entry.index] = true;
}

void ZipArchive::read(const ZipEntry& entry, std::uint64_t offset, MutableByteSpan out) const {
  if (!is_verified_[entry.index]) verify(entry);
  if (!reading_ || reading_->entry().index != entry.index) {
    reading_.reset();
    reading_ = std::make_unique<Stream>(*this, entry);
  }
  reading_->seek(offset);
  reading_->read(out);
}

}  // namespace lockstep::internal
