// A checkpoint whose every byte says which version it is, so that a mixture of two cannot pass for one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/formats/safetensors/safetensors_file.h"

namespace lockstep {

inline void save_version(const std::filesystem::path& path, std::uint64_t version, std::size_t elements) {
  const std::vector<std::uint64_t> content(elements, version);
  const std::vector<TensorBytes> tensors = {
      {"content", "U64", {static_cast<std::int64_t>(elements)}, std::as_bytes(std::span(content))}};
  write_safetensors(path, tensors, {{"version", std::to_string(version)}});
}

// The version, after checking that all of the file says the same. Throws Error as SafetensorsReader does.
inline std::uint64_t load_version(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  const std::uint64_t version = std::stoull(reader.header().metadata.at("version"));
  for (const TensorEntry& entry : reader.header().tensors) {
    std::vector<std::uint64_t> content((entry.end - entry.begin) / sizeof(std::uint64_t));
    reader.read(entry, std::as_writable_bytes(std::span(content)));
    for (const std::uint64_t element : content) {
      if (element != version) throw Error(ErrorKind::corrupt_data, "two versions in one file");
    }
  }
  return version;
}

inline std::ptrdiff_t files_in(const std::filesystem::path& directory) {
  return std::distance(std::filesystem::directory_iterator(directory), {});
}

}  // namespace lockstep
