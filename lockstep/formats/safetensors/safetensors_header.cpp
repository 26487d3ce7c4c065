#include "lockstep/formats/safetensors/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::size_t kAlignment = 8;
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(ErrorKind kind, const std::string& text) { throw Error(kind, "safetensors header: " + text); }

const SafetensorsType* find_type(std::string_view dtype) {
  const auto* found = std::ranges::find(kSafetensorsTypes, dtype, &SafetensorsType::name);
  return found == kSafetensorsTypes.end() ? nullptr : found;
}

// How many numbers of the type in the file make up an element; 1 is not a separate dimension.
std::int64_t numbers_in(const SafetensorsType& type) {
  if (type.stored_as.empty()) return 1;
  return static_cast<std::int64_t>(type.element_bytes / safetensors_element_size(type.stored_as));
}

// The header's notes on tensors whose type the format lacks.
std::map<std::string, std::string> type_notes(const SafetensorsHeader& header) {
  std::map<std::string, std::string> notes;
  for (const TensorEntry& entry : header.tensors) {
    const SafetensorsType* type = find_type(entry.dtype);
    if (type != nullptr && !type->stored_as.empty()) notes.emplace(std::string(kTypeKey) + entry.name, entry.dtype);
  }
  return notes;
}

// Replaces the type and the shape in the file by the actual ones.
void apply_note(TensorEntry& entry, const std::string& dtype) {
  constexpr ErrorKind kind = ErrorKind::corrupt_data;
  const SafetensorsType* type = find_type(dtype);
  if (type == nullptr || type->stored_as.empty()) {
    refuse(kind, fmt::format("the metadata gives tensor {} the unknown type {}", shown(entry.name), shown(dtype)));
  }
  const std::int64_t numbers = numbers_in(*type);
  const bool fits = numbers == 1 || (!entry.shape.empty() && entry.shape.back() == numbers);
  if (entry.dtype != type->stored_as || !fits) {
    refuse(kind, fmt::format("the metadata gives tensor {} the type {}, but it is {} {}", shown(entry.name), dtype,
                             shown(entry.dtype), entry.shape));
  }
  entry.dtype = dtype;
  if (numbers != 1) entry.shape.pop_back();
}

// Takes the notes out of the metadata.
void take_type_notes(SafetensorsHeader& header) {
  std::map<std::string_view, std::string> notes;
  for (const auto& [key, dtype] : header.metadata) {
    if (key.starts_with(kTypeKey)) notes.emplace(std::string_view(key).substr(kTypeKey.size()), dtype);
  }
  if (notes.empty()) return;
  for (TensorEntry& entry : header.tensors) {
    const auto note = notes.find(entry.name);
    if (note == notes.end()) continue;
    apply_note(entry, note->second);
    notes.erase(note);
  }
  if (!notes.empty()) {
    refuse(ErrorKind::corrupt_data,
           fmt::format("the metadata gives a type for tensor {}, which does not exist", shown(notes.begin()->first)));
  }
  std::erase_if(header.metadata, [](const auto& item) { return item.first.starts_with(kTypeKey); });
}

// The bytes a tensor of this type and shape takes; refuses sizes that do not fit into 63 bits.
std::uint64_t checked_bytes(const TensorEntry& entry, ErrorKind kind) {
  std::uint64_t bytes = safetensors_element_size(entry.dtype);
  if (bytes == 0) refuse(kind, fmt::format("tensor {} has the unknown type {}", shown(entry.name), shown(entry.dtype)));
  const std::size_t dimensions = SafetensorsLimits::kDimensions - (numbers_in(*find_type(entry.dtype)) == 1 ? 0 : 1);
  if (entry.shape.size() > dimensions) {
    refuse(kind, fmt::format("tensor {} has {} dimensions; at most {} are allowed", shown(entry.name),
                             entry.shape.size(), dimensions));
  }
  const bool is_empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  for (const std::int64_t dimension : entry.shape) {
    if (dimension < 0)
      refuse(kind, fmt::format("tensor {} has the invalid dimension {}", shown(entry.name), dimension));
    if (is_empty) continue;
    if (bytes > kMaxBytes / static_cast<std::uint64_t>(dimension)) {
      refuse(kind, fmt::format("the size of tensor {} {} overflows", shown(entry.name), entry.shape));
    }
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return is_empty ? 0 : bytes;
}

void check_name(std::string_view name, std::string_view what, std::size_t limit, ErrorKind kind) {
  if (name.empty() || name.size() > limit) {
    refuse(kind,
           fmt::format("{} has a name of {} bytes; 1 to {} are allowed: {}", what, name.size(), limit, shown(name)));
  }
  const bool has_control =
      std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (has_control) {
    refuse(kind, fmt::format("{} has a name with control characters, shown as '?': {}", what, shown(name)));
  }
}

void check_names(const SafetensorsHeader& header, ErrorKind kind) {
  const std::size_t entries = header.tensors.size() + header.metadata.size() + type_notes(header).size();
  if (entries > SafetensorsLimits::kEntries) {
    refuse(kind, fmt::format("it has {} entries; at most {} are allowed", entries, SafetensorsLimits::kEntries));
  }
  std::vector<std::string_view> names;
  names.reserve(header.tensors.size());
  for (const TensorEntry& entry : header.tensors) {
    check_name(entry.name, "a tensor", SafetensorsLimits::kTensorNameBytes, kind);
    if (entry.name == kMetadataKey) refuse(kind, fmt::format("a tensor has the reserved name {}", kMetadataKey));
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
  const SafetensorsType* type = find_type(dtype);
  return type == nullptr ? 0 : type->element_bytes;
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
  std::map<std::string, std::string> metadata = type_notes(header);
  metadata.insert(header.metadata.begin(), header.metadata.end());
  if (!metadata.empty()) json[std::string(kMetadataKey)] = metadata;
  for (const TensorEntry& entry : header.tensors) {
    const SafetensorsType& type = *find_type(entry.dtype);
    std::vector<std::int64_t> shape = entry.shape;
    if (numbers_in(type) != 1) shape.push_back(numbers_in(type));
    json[entry.name] = {{"dtype", type.stored_as.empty() ? type.name : type.stored_as},
                        {"shape", shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text(kHeaderLengthBytes, '\0');
  try {
    text += json.dump();
  } catch (const nlohmann::json::exception& error) {
    refuse(ErrorKind::invalid_argument, fmt::format("a name or a metadata string is not UTF-8 ({})", error.what()));
  }
  if (longest_token(ByteView(text).substr(kHeaderLengthBytes)) > SafetensorsLimits::kTokenBytes) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("a name or a metadata string is longer than {} bytes", SafetensorsLimits::kTokenBytes));
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size() - kHeaderLengthBytes;
  if (length > SafetensorsLimits::kHeaderBytes) {
    refuse(ErrorKind::invalid_argument,
           fmt::format("it takes {} bytes; at most {} are allowed", length, SafetensorsLimits::kHeaderBytes));
  }
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) text[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return text;
}

std::uint64_t parse_header_length(ByteView first_eight_bytes, std::uint64_t file_bytes) {
  constexpr ErrorKind kind = ErrorKind::corrupt_data;
  if (first_eight_bytes.size() < kHeaderLengthBytes || file_bytes < kHeaderLengthBytes) {
    refuse(kind, fmt::format("the file has {} bytes, but the length of the header alone takes {}", file_bytes,
                             kHeaderLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_eight_bytes[i])} << (8 * i);
  }
  if (length > SafetensorsLimits::kHeaderBytes) {
    refuse(kind, fmt::format("its length field is {} bytes; at most {} are allowed", length,
                             SafetensorsLimits::kHeaderBytes));
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    refuse(kind, fmt::format("its length field is {} bytes, but the file has only {}", length, file_bytes));
  }
  return length;
}

SafetensorsHeader parse_header(ByteView json, std::uint64_t data_bytes) {
  constexpr ErrorKind kind = ErrorKind::corrupt_data;
  SafetensorsHeader header = parse_safetensors_json(json);
  take_type_notes(header);
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
