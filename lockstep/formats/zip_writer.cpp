#include "lockstep/formats/zip_writer.h"

#include <zlib.h>

#include <span>

namespace lockstep::internal {

void ZipWriter::emit(const std::string& bytes) {
  file_.write(std::as_bytes(std::span(bytes)));
  written_ += bytes.size();
}

void ZipWriter::begin(const std::string& name, std::uint64_t bytes) {
  entries_.push_back({.name = name, .bytes = bytes, .begin = written_, .crc = 0});
  emit(local_header(entries_.back()));
}

void ZipWriter::write(ByteSpan bytes) {
  ZipRecord& entry = entries_.back();
  file_.write(bytes);
  written_ += bytes.size();
  entry.crc = static_cast<std::uint32_t>(
      ::crc32_z(entry.crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

void ZipWriter::end() { emit(data_descriptor(entries_.back())); }

void ZipWriter::add(const std::string& name, ByteView bytes) {
  begin(name, bytes.size());
  write(std::as_bytes(std::span(bytes)));
  end();
}

void ZipWriter::finish() {
  const std::uint64_t directory = written_;
  for (const ZipRecord& entry : entries_) emit(directory_entry(entry));
  emit(directory_end(entries_.size(), directory, written_ - directory));
}

}  // namespace lockstep::internal
