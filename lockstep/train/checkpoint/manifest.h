// The manifest of a checkpoint set: what the files of all ranks hold together. manifest -> JSON -> manifest.json of the
// set -> JSON -> manifest. A set is one directory with a safetensors file of each rank that wrote something. A tensor
// lies in one file, or in several, cut between rows: elements along its first dimension.
// Pure functions. A manifest covers itself with a digest, and each piece with one, so all of a set's bytes are covered;
// all are of one kind. It may be signed (manifest_seal.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/formats/safetensors/digest.h"

namespace lockstep::internal {

class SigningKey;

struct ManifestLimits {
  static constexpr std::uint64_t kBytes = 64 << 20;
  static constexpr std::size_t kPieces = 1'000'000;
  static constexpr int kDepth = 64;  // of the user's values
};

struct SetPiece {
  std::size_t file = 0;  // its index
  // Of the tensor; one of no dimensions has one row.
  std::int64_t first_row = 0;
  std::int64_t end_row = 0;
  std::string digest = {};  // of its bytes
  bool operator==(const SetPiece&) const = default;
};

struct SetTensor {
  std::string dtype;  // as in safetensors_element_size()
  std::vector<std::int64_t> shape;
  std::vector<SetPiece> pieces = {};  // in the order of rows, without a gap

  std::int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  std::uint64_t row_bytes() const;
  std::uint64_t bytes() const { return row_bytes() * static_cast<std::uint64_t>(rows()); }
  bool operator==(const SetTensor&) const = default;
};

struct SetFile {
  std::string name;         // in the set's directory
  std::uint64_t bytes = 0;  // its size
  int rank = 0;             // that wrote it
  std::string host = {};
  bool operator==(const SetFile&) const = default;
};

struct Manifest {
  std::uint64_t step = 0;
  int world_size = 1;
  // When and by what it was written: "time", "lockstep", "torch", "threads".
  std::map<std::string, std::string> written = {};
  std::vector<SetFile> files = {};
  std::map<std::string, SetTensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
  std::map<std::string, double> metrics = {};
  std::string user = "null";  // JSON of any shape
  DigestKind digest = DigestKind::xxh3_128;
  bool is_signed = false;  // with some key
  bool operator==(const Manifest&) const = default;
};

// Now, as Manifest::written has it: "2026-01-31T12:00:00Z".
std::string time_of_writing();

// What a piece is called in its file: the tensor's name, or "name[0:512]" for some of its rows.
std::string piece_name(const std::string& tensor, const SetTensor& of, const SetPiece& piece);

// With a key it is signed. REQUIRES then: its digests are SHA-256. Error{invalid_argument}: something that
// parse_manifest() would refuse.
std::string serialise(const Manifest& manifest, const SigningKey* key = nullptr);
// Error{corrupt_data} for any text that serialise() does not produce: other keys, inconsistent numbers, a gap between
// pieces, names that lead out of the directory, another digest, a signature over digests that prove nothing.
// SignatureCheck checks the signature.
Manifest parse_manifest(ByteView json, const Origin& origin);

}  // namespace lockstep::internal
