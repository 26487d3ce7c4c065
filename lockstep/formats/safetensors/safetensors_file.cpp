#include "lockstep/formats/safetensors/safetensors_file.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/file_kind.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::string_view kReserved = "lockstep.";
constexpr std::size_t kPieceBytes = 512 << 10;  // what the digest has read is still in the core's cache for the write

// "lockstep.xxh3.tensor.", which the tensor's name follows.
std::string tensor_key(DigestKind kind) { return fmt::format("{}{}.tensor.", kReserved, name_of(kind).key); }
std::string header_key(DigestKind kind) { return fmt::format("{}{}.header", kReserved, name_of(kind).key); }

Error damaged(const std::filesystem::path& path, const std::string& text) {
  return Error(ErrorKind::corrupt_data, fmt::format("{} is damaged: {}", path.string(), text));
}

template <class Parse>
auto naming_file(const std::filesystem::path& path, Parse parse) {
  try {
    return parse();
  } catch (const Error& error) {
    throw damaged(path, error.what());
  }
}

// The position of the digits of the header's digest; npos if they are missing.
std::size_t find_header_digest(ByteView header, DigestKind kind) {
  // Within a string the quotes would be escaped, so this finds only the real one.
  const std::string mark = fmt::format(R"("{}":")", header_key(kind));
  const std::size_t at = header.find(mark, kHeaderLengthBytes);
  if (at == ByteView::npos) return ByteView::npos;
  const std::size_t digits = at + mark.size();
  return header.size() - digits < name_of(kind).digits ? ByteView::npos : digits;
}

// Laid out, with zeros for all digests.
SafetensorsHeader header_of(const std::filesystem::path& path, std::span<const StreamedTensor> tensors,
                            const std::map<std::string, std::string>& metadata, DigestKind digest) {
  SafetensorsHeader header{.metadata = metadata};
  for (const auto& [key, value] : metadata) {
    if (key.starts_with(kReserved)) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("saving {}: metadata names that begin with '{}' are reserved: {}", path.string(),
                              kReserved, key));
    }
  }
  const std::string zeros(name_of(digest).digits, '0');
  for (const StreamedTensor& tensor : tensors) {
    header.tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    header.metadata[tensor_key(digest) + tensor.name] = zeros;
  }
  header.metadata[header_key(digest)] = zeros;
  lay_out(header);
  return header;
}

// Returns its digest.
std::string write_tensor(AtomicFile& file, const std::filesystem::path& path, const TensorEntry& entry,
                         const StreamedTensor& tensor, DigestKind kind) {
  RunningDigest digest(kind);
  std::uint64_t count = 0;
  tensor.bytes([&](ByteSpan bytes) {
    count += bytes.size();
    while (!bytes.empty()) {
      const ByteSpan piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      bytes = bytes.subspan(piece.size());
      digest.add(piece);
      if (count <= entry.end - entry.begin) file.write(piece);
    }
  });
  if (count == entry.end - entry.begin) return digest.digits();
  throw Error(ErrorKind::invalid_argument,
              fmt::format("saving {}: tensor '{}' ({}) got {} bytes of data, which differs from its size",
                          path.string(), entry.name, describe(entry), count));
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata, DigestKind digest) {
  std::vector<StreamedTensor> streamed;
  for (const TensorBytes& tensor : tensors) {
    streamed.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = [&tensor](const auto& sink) {
           sink(tensor.bytes);
         }});
  }
  return stream_safetensors(path, streamed, metadata, digest);
}

WrittenFile stream_safetensors(const std::filesystem::path& path, std::span<const StreamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata, DigestKind kind) {
  SafetensorsHeader header = header_of(path, tensors, metadata, kind);
  std::map<std::string_view, const StreamedTensor*> sources;
  for (const StreamedTensor& tensor : tensors) sources[tensor.name] = &tensor;
  // The digests have their length before they are known, so the header has its own.
  std::string text = serialise_header(header);

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  WrittenFile written;
  for (const TensorEntry& entry : header.tensors) {
    const std::string& digest = written.digests[entry.name] =
        write_tensor(file, path, entry, *sources.at(entry.name), kind);
    header.metadata[tensor_key(kind) + entry.name] = digest;
  }
  text = serialise_header(header);
  text.replace(find_header_digest(text, kind), name_of(kind).digits, digest_of(kind, text));
  file.rewrite_begin(std::as_bytes(std::span(text)));
  file.publish();
  written.bytes = text.size() + (header.tensors.empty() ? 0 : header.tensors.back().end);
  return written;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, Integrity integrity)
    : SafetensorsReader(path, open_regular_file(path.string()), integrity) {}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, OpenFile file, Integrity integrity)
    : path_(path), file_(std::move(file.fd)), file_bytes_(file.bytes) {
  refuse_other_kinds();
  read_header(integrity);
}

void SafetensorsReader::refuse_other_kinds() const {
  std::string first(std::min<std::uint64_t>(kFileKindBytes, file_bytes_), '\0');
  read_at(0, std::as_writable_bytes(std::span(first)));
  const FileKind kind = recognise_file(first);
  if (kind == FileKind::unknown || kind == FileKind::empty || kind == FileKind::safetensors) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{} {}", path_.string(), how_to_read(kind)));
}

void SafetensorsReader::read_header(Integrity integrity) {
  std::string text(std::min<std::uint64_t>(kHeaderLengthBytes, file_bytes_), '\0');
  read_at(0, std::as_writable_bytes(std::span(text)));
  data_offset_ = kHeaderLengthBytes + naming_file(path_, [&] { return parse_header_length(text, file_bytes_); });
  text.resize(data_offset_);
  read_at(kHeaderLengthBytes, std::as_writable_bytes(std::span(text)).subspan(kHeaderLengthBytes));
  verify_header_digest(text);
  header_ = naming_file(
      path_, [&] { return parse_header(ByteView(text).substr(kHeaderLengthBytes), file_bytes_ - data_offset_); });
  take_integrity_record(integrity);
}

void SafetensorsReader::verify_header_digest(const std::string& prefix_and_json) {
  for (const DigestName& each : kDigests) {
    const std::size_t digits = find_header_digest(prefix_and_json, each.kind);
    if (digits == std::string::npos) continue;
    if (header_is_verified_) throw damaged(path_, "the header has digests of two kinds");
    std::string blanked = prefix_and_json;
    blanked.replace(digits, each.digits, each.digits, '0');
    const std::string expected = prefix_and_json.substr(digits, each.digits);
    const std::string found = digest_of(each.kind, blanked);
    if (found != expected) {
      throw damaged(path_, fmt::format("the header, bytes 0 to {}: {} expected {}, found {}", prefix_and_json.size(),
                                       each.text, shown(expected), found));
    }
    header_is_verified_ = true;
    digest_kind_ = each.kind;
  }
}

void SafetensorsReader::take_integrity_record(Integrity integrity) {
  std::erase_if(header_.metadata, [this](const auto& item) {
    for (const DigestName& each : kDigests) {
      const std::string key = tensor_key(each.kind);
      const bool is_of_record = !header_is_verified_ || each.kind == digest_kind_;
      if (is_of_record && item.first.starts_with(key)) digests_[item.first.substr(key.size())] = item.second;
    }
    return item.first.starts_with(kReserved);
  });
  if (!header_is_verified_) {
    if (!digests_.empty()) throw damaged(path_, "the header's own digest is missing");
    if (integrity == Integrity::if_present) return;
    throw damaged(path_, "it has no integrity record; if another program wrote it, load it with Integrity::if_present");
  }
  for (const TensorEntry& entry : header_.tensors) {
    if (!digests_.contains(entry.name)) {
      throw damaged(path_, fmt::format("tensor '{}' ({}) has no digest", entry.name, describe(entry)));
    }
  }
  if (digests_.size() != header_.tensors.size()) {
    throw damaged(path_, fmt::format("it has {} tensors, but digests for {}", header_.tensors.size(), digests_.size()));
  }
}

std::string SafetensorsReader::digest(const TensorEntry& entry) const {
  const auto found = digests_.find(entry.name);
  return found == digests_.end() ? "" : found->second;
}

void SafetensorsReader::read(const TensorEntry& entry, MutableByteSpan out) const {
  read_at(data_offset_ + entry.begin, out);
  if (digests_.empty()) return;
  RunningDigest digest(digest_kind_);
  digest.add(out);
  check_digest(entry, digest.digits());
}

void SafetensorsReader::check_digest(const TensorEntry& entry, const std::string& found) const {
  const auto expected = digests_.find(entry.name);
  if (expected == digests_.end() || found == expected->second) return;
  throw damaged(path_, fmt::format("tensor '{}' ({}, {} to {} of the file): {} expected {}, found {}", entry.name,
                                   describe(entry), data_offset_ + entry.begin, data_offset_ + entry.end,
                                   name_of(digest_kind_).text, shown(expected->second), found));
}

void SafetensorsReader::read_at(std::uint64_t offset, MutableByteSpan out) const {
  const ssize_t count = internal::read_at(file_.get(), offset, out);
  if (count < 0 && errno == EIO) throw damaged(path_, fmt::format("the disk cannot read the data at byte {}", offset));
  if (count < 0) throw system_error(fmt::format("reading {} at byte {}", path_.string(), offset), errno);
  const auto read = static_cast<std::size_t>(count);
  if (read == out.size()) return;
  throw damaged(path_, fmt::format("it ends at byte {}, {} more were expected", offset + read, out.size() - read));
}

TensorStream::TensorStream(const SafetensorsReader& file, const TensorEntry& entry)
    : file_(file), entry_(entry), at_(entry.begin), digest_(file.digest_kind_) {
  end_if_all_is_read();
}

void TensorStream::read(MutableByteSpan out) {
  file_.read_at(file_.data_offset_ + at_, out);
  digest_.add(out);
  at_ += out.size();
  if (!out.empty()) end_if_all_is_read();
}

void TensorStream::end_if_all_is_read() {
  if (left() == 0) file_.check_digest(entry_, digest_.digits());
}

}  // namespace lockstep
