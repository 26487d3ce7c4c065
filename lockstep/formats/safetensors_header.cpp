#include "lockstep/formats/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors_parser.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::size_t kAlignment = 8;
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(ErrorKind kind, const std::string& text) { throw Error(kind, "safetensors header: " + text); }

// The bytes a tensor of this type and shape takes; refuses what does not fit into 63 bits.
std::uint64_t checked_bytes(const TensorEntry& entry, ErrorKind kind) {
  std::uint64_t bytes = safetensors_element_size(entry.dtype);
  if (bytes == 0) refuse(kind, fmt::format("tensor {} has the unknown type {}", shown(entry.name), shown(entry.dtype)));
  if (entry.shape.size() > SafetensorsLimits::kDimensions) {
    refuse(kind, fmt::format("tensor {} has {} dimensions, at most {} are allowed", shown(entry.name),
                             entry.shape.size(), SafetensorsLimits::kDimensions));
  }
  const bool is_empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  for (const std::int64_t dimension : entry.shape) {
    if (dimension < 0) refuse(kind, fmt::format("tensor {} has the dimension {}", shown(entry.name), dimension));
    if (is_empty) continue;
    if (bytes > kMaxBytes / static_cast<std::uint64_t>(dimension)) {
      refuse(kind, fmt::format("tensor {} {} overflows", shown(entry.name), entry.shape));
    }
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return is_empty ? 0 : bytes;
}

void check_name(std::string_view name, std::string_view what, std::size_t limit, ErrorKind kind) {
  if (name.empty() || name.size() > limit) {
    refuse(kind, fmt::format("{} has a name of {} bytes, allowed are 1 to {}", what, name.size(), limit));
  }
  const bool has_control =
      std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (has_control) refuse(kind, fmt::format("{} has a name with control characters in it", what));
}

void check_names(const SafetensorsHeader& header, ErrorKind kind) {
  const std::size_t entries = header.tensors.size() + header.metadata.size();
  if (entries > SafetensorsLimits::kEntries) {
    refuse(kind, fmt::format("{} entries, at most {} are allowed", entries, SafetensorsLimits::kEntries));
  }
  std::vector<std::string_view> names;
  names.reserve(header.tensors.size());
  for (const TensorEntry& entry : header.tensors) {
    check_name(entry.name, "a tensor", SafetensorsLimits::kTensorNameBytes, kind);
    if (entry.name == kMetadataKey) refuse(kind, fmt::format("a tensor is called {}", kMetadataKey));
    names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) refuse(kind, fmt::format("tensor {} appears twice", shown(*twice)));
  for (const auto& [key, value] : header.metadata) {
    check_name(key, "a metadata string", SafetensorsLimits::kMetadataNameBytes, kind);
  }
}

}  // namespace

std::size_t safetensors_element_size(std::string_view dtype) {
  const auto* found = std::ranges::find(kSafetensorsTypes, dtype, &SafetensorsType::name);
  return found == kSafetensorsTypes.end() ? 0 : found->element_bytes;
}

std::string describe(const TensorEntry& entry) {
  return fmt::format("{} {}, bytes {} to {} of the data", entry.dtype, entry.shape, entry.begin, entry.end);
}

void lay_out(SafetensorsHeader& header) {
  constexpr ErrorKind kind = ErrorKind::invalid_argument;
  check_names(header, kind);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const std::size_t size_a = safetensors_element_size(a.dtype);
    const std::size_t size_b = safetensors_element_size(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
  std::uint64_t offset = 0;
  for (TensorEntry& entry : header.tensors) {
    const std::uint64_t bytes = checked_bytes(entry, kind);
    if (bytes > kMaxBytes - offset) refuse(kind, fmt::format("tensor {} does not fit into a file", shown(entry.name)));
    entry.begin = offset;
    entry.end = offset + bytes;
    offset = entry.end;
  }
}

std::string serialise_header(const SafetensorsHeader& header) {
  nlohmann::json json = nlohmann::json::object();
  if (!header.metadata.empty()) json[std::string(kMetadataKey)] = header.metadata;
  for (const TensorEntry& entry : header.tensors) {
    json[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text(kHeaderLengthBytes, '\0');
  try {
    text += json.dump();
  } catch (const nlohmann::json::exception& error) {
    refuse(ErrorKind::invalid_argument, fmt::format("a name or a metadata string is not UTF-8 ({})", error.what()));
  }
  if (longest_token(ByteView(text).substr(kHeaderLengthBytes)) > SafetensorsLimits::kTokenBytes) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("a metadata string is longer than {} bytes", SafetensorsLimits::kTokenBytes));
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size() - kHeaderLengthBytes;
  if (length > SafetensorsLimits::kHeaderBytes) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("it takes {} bytes, at most {} are allowed", length, SafetensorsLimits::kHeaderBytes));
  }
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return text;
}

std::uint64_t parse_header_length(ByteView first_eight_bytes, std::uint64_t file_bytes) {
  constexpr ErrorKind kind = ErrorKind::corrupt_data;
  if (first_eight_bytes.size() < kHeaderLengthBytes || file_bytes < kHeaderLengthBytes) {
    refuse(kind, fmt::format("the file has {} bytes, the length of the header alone takes {}", file_bytes,
                             kHeaderLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_eight_bytes[i])} << (8 * i);
  }
  if (length > SafetensorsLimits::kHeaderBytes) {
    refuse(kind, fmt::format("its length is given as {} bytes, at most {} are allowed", length,
                             SafetensorsLimits::kHeaderBytes));
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    refuse(kind, fmt::format("its length is given as {} bytes, but the file has only {}", length, file_bytes));
  }
  return length;
}

SafetensorsHeader parse_header(ByteView json, std::uint64_t data_bytes) {
  constexpr ErrorKind kind = ErrorKind::corrupt_data;
  SafetensorsHeader header = parse_safetensors_json(json);
  check_names(header, kind);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t offset = 0;
  for (const TensorEntry& entry : header.tensors) {
    const std::uint64_t bytes = checked_bytes(entry, kind);
    if (entry.begin != offset) {
      refuse(kind, fmt::format("tensor {} ({}) should begin at byte {}: the tensors overlap or leave a gap",
                               shown(entry.name), describe(entry), offset));
    }
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      refuse(kind, fmt::format("tensor {} ({}) should take {} bytes", shown(entry.name), describe(entry), bytes));
    }
    offset = entry.end;
  }
  if (offset != data_bytes) {
    refuse(kind, fmt::format("the tensors take {} bytes, but {} follow the header: the file is {}", offset, data_bytes,
                             data_bytes < offset ? "truncated" : "too long"));
  }
  return header;
}

}  // namespace lockstep
