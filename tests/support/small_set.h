// Small checkpoint sets, written without torch: content -> a part of each rank -> manifest -> a set, and back. Every
// number in a set's tensors is its version, so that a mixture of two sets cannot pass for one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"

namespace lockstep::testing {

using internal::Manifest;
using internal::SetPiece;
using internal::SetTensor;

struct SmallSet {
  std::uint64_t step = 400;
  std::int64_t version = 1;
  int writers = 2;
  std::int64_t rows = 8;
  std::map<std::string, double> metrics = {};
  std::string user = "null";
  DigestKind digest = DigestKind::xxh3_128;
};

inline std::string part_name(int rank, int writers) {
  const auto digits = [](int number) {
    const std::string text = std::to_string(number);
    return std::string(5 - text.size(), '0') + text;
  };
  return "part-" + digits(rank) + "-of-" + digits(writers) + ".safetensors";
}

// What is in it, without pieces: a tensor that is cut between the writers; a scalar and an empty one of the last.
inline Manifest outline(const SmallSet& set) {
  Manifest manifest{
      .step = set.step, .world_size = set.writers, .metrics = set.metrics, .user = set.user, .digest = set.digest};
  manifest.written = {{"time", "2026-01-02T03:04:05Z"}, {"lockstep", "0.1.0"}};
  manifest.metadata = {{"version", std::to_string(set.version)}};
  manifest.tensors = {{"weight", {.dtype = "I64", .shape = {set.rows, 2}}},
                      {"scalar", {.dtype = "I64", .shape = {}}},
                      {"empty", {.dtype = "F16", .shape = {0, 3}}}};
  return manifest;
}

// The pieces that one of the writers has, without digests.
inline std::map<std::string, SetPiece> pieces_of(const SmallSet& set, int rank) {
  const auto file = static_cast<std::size_t>(rank);
  std::map<std::string, SetPiece> pieces;
  const std::int64_t first = set.rows * rank / set.writers, end = set.rows * (rank + 1) / set.writers;
  if (end > first) pieces["weight"] = {.file = file, .first_row = first, .end_row = end};
  if (rank == set.writers - 1) {
    pieces["scalar"] = {.file = file, .first_row = 0, .end_row = 1};
    pieces["empty"] = {.file = file};
  }
  return pieces;
}

// Writes the part of one rank.
inline WrittenFile write_part(const std::filesystem::path& directory, const SmallSet& set, int rank) {
  const Manifest manifest = outline(set);
  const std::vector<std::int64_t> content(static_cast<std::size_t>(set.rows) * 2 + 1, set.version);
  std::vector<TensorBytes> tensors;
  for (const auto& [name, piece] : pieces_of(set, rank)) {
    const SetTensor& tensor = manifest.tensors.at(name);
    std::vector<std::int64_t> shape = tensor.shape;
    if (!shape.empty()) shape.front() = piece.end_row - piece.first_row;
    const std::size_t bytes = tensor.row_bytes() * static_cast<std::size_t>(piece.end_row - piece.first_row);
    tensors.push_back(
        {piece_name(name, tensor, piece), tensor.dtype, shape, std::as_bytes(std::span(content)).first(bytes)});
  }
  return write_safetensors(directory / part_name(rank, set.writers), tensors, {}, set.digest);
}

// Of all parts; `parts` in the order of ranks.
inline Manifest manifest_of(const SmallSet& set, const std::vector<WrittenFile>& parts) {
  Manifest manifest = outline(set);
  for (int rank = 0; rank < set.writers; ++rank) {
    const WrittenFile& part = parts[static_cast<std::size_t>(rank)];
    manifest.files.push_back(
        {.name = part_name(rank, set.writers), .bytes = part.bytes, .rank = rank, .host = "h" + std::to_string(rank)});
    for (auto [name, piece] : pieces_of(set, rank)) {
      SetTensor& tensor = manifest.tensors.at(name);
      piece.digest = part.digests.at(piece_name(name, tensor, piece));
      tensor.pieces.push_back(piece);
    }
  }
  return manifest;
}

inline std::filesystem::path write_set(const std::filesystem::path& directory, const SmallSet& set,
                                       const internal::SigningKey* key = nullptr) {
  internal::SetDirectory hidden(directory, set.step);
  std::vector<WrittenFile> parts;
  for (int rank = 0; rank < set.writers; ++rank) parts.push_back(write_part(hidden.path(), set, rank));
  return hidden.publish(serialise(manifest_of(set, parts), key));
}

// Reads everything. Error as of SetReader, or if it is of two versions.
inline std::int64_t version_of(internal::SetReader& reader) {
  const std::int64_t version = std::stoll(reader.manifest().metadata.at("version"));
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    for (const SetPiece& piece : tensor.pieces) {
      std::vector<std::byte> bytes(tensor.row_bytes() * static_cast<std::size_t>(piece.end_row - piece.first_row));
      reader.read(name, piece, bytes);
      for (std::size_t at = 0; at < bytes.size(); at += sizeof version) {
        if (std::memcmp(bytes.data() + at, &version, sizeof version) == 0) continue;
        throw Error(ErrorKind::corrupt_data, "two versions in one set");
      }
    }
  }
  return version;
}
inline std::int64_t version_of(const std::filesystem::path& set) {
  internal::SetReader reader(set);
  return version_of(reader);
}

}  // namespace lockstep::testing
