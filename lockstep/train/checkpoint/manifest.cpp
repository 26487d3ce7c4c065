#include "lockstep/train/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/json_structure.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/train/checkpoint/manifest_seal.h"
#include "lockstep/train/checkpoint/set_directory.h"

namespace lockstep::internal {
namespace {

using Json = nlohmann::json;
using Members = std::vector<const char*>;

constexpr const char* kFormat = "lockstep checkpoint";
constexpr int kVersion = 1;

// Reads members of JSON objects, each with the type that it must have.
class ManifestReader {
 public:
  explicit ManifestReader(const Origin& origin) : origin_(origin) {}

  [[noreturn]] void refuse(const std::string& why) const { throw_corrupt(origin_, "the manifest is damaged: " + why); }
  // An object of these members, no more and no less.
  const Json& object(const Json& value, const std::string& what, const Members& members) const {
    if (!value.is_object()) refuse(what + " is not an object");
    for (const auto& [name, member] : value.items()) {
      if (std::ranges::find(members, name) == members.end()) refuse(what + " has an unknown member " + shown(name));
    }
    for (const char* name : members) {
      if (!value.contains(name)) refuse(fmt::format("{} has no '{}'", what, name));
    }
    return value;
  }
  const Json& list(const Json& value, const std::string& what) const {
    if (!value.is_array()) refuse(what + " is not a list");
    return value;
  }
  const Json& any_object(const Json& value, const std::string& what) const {
    if (!value.is_object()) refuse(what + " is not an object");
    return value;
  }
  std::string text(const Json& value, const std::string& what) const {
    if (!value.is_string()) refuse(what + " is not a string");
    return value.get<std::string>();
  }
  // REQUIRES: 0 <= least <= most.
  std::int64_t number(const Json& value, const std::string& what, std::int64_t most, std::int64_t least = 0) const {
    if (!value.is_number_integer()) refuse(what + " is not an integer");
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() >= static_cast<std::uint64_t>(least) &&
                      value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits) refuse(fmt::format("{} is {}; it must be from {} to {}", what, value.dump(), least, most));
    return value.get<std::int64_t>();
  }
  std::map<std::string, std::string> texts(const Json& value, const std::string& what) const {
    std::map<std::string, std::string> result;
    for (const auto& [name, member] : any_object(value, what).items()) result[name] = text(member, what);
    return result;
  }

 private:
  const Origin& origin_;
};

// 0 if any of the factors is, whatever the others are.
std::uint64_t product_or_most(std::span<const std::int64_t> factors, std::uint64_t start) {
  if (std::ranges::find(factors, 0) != factors.end()) return 0;
  std::uint64_t product = start;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(factor), &product)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return product;
}

SetTensor tensor_of(const ManifestReader& reader, const std::string& name, const Json& value, std::size_t files,
                    DigestKind digest) {
  const char* const digest_key = name_of(digest).key.data();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::string what = "tensor " + shown(name);
  reader.object(value, what, {"dtype", "shape", "pieces"});
  SetTensor tensor{.dtype = reader.text(value["dtype"], what + ": dtype"), .shape = {}};
  const std::size_t element = safetensors_element_size(tensor.dtype);
  if (element == 0) reader.refuse(what + " has the unknown type " + shown(tensor.dtype));
  for (const Json& size : reader.list(value["shape"], what + ": shape")) {
    tensor.shape.push_back(reader.number(size, what + ": a dimension", kMost));
  }
  if (tensor.shape.size() > SafetensorsLimits::kDimensions ||
      product_or_most(tensor.shape, element) > static_cast<std::uint64_t>(kMost)) {
    reader.refuse(what + " has more dimensions or elements than are supported");
  }
  std::int64_t row = 0;
  for (const Json& each : reader.list(value["pieces"], what + ": pieces")) {
    reader.object(each, what + ": a piece", {"file", "rows", digest_key});
    const Json& rows = reader.list(each["rows"], what + ": rows");
    if (rows.size() != 2 || files == 0) reader.refuse(what + " has a piece without a row range or a file");
    SetPiece piece{.file = static_cast<std::size_t>(
                       reader.number(each["file"], what + ": file", static_cast<std::int64_t>(files) - 1)),
                   .first_row = reader.number(rows[0], what + ": first row", tensor.rows()),
                   .end_row = reader.number(rows[1], what + ": end of the rows", tensor.rows()),
                   .digest = reader.text(each[digest_key], what + ": digest")};
    const bool is_empty = piece.end_row == piece.first_row && tensor.rows() != 0;
    if (piece.first_row != row || piece.end_row < row || is_empty) {
      reader.refuse(fmt::format("{} has a piece of rows {} to {}; expected one that begins at row {}", what,
                                piece.first_row, piece.end_row, row));
    }
    row = piece.end_row;
    tensor.pieces.push_back(std::move(piece));
  }
  if (tensor.pieces.empty() || row != tensor.rows()) {
    reader.refuse(fmt::format("{} has {} rows, but its pieces end at row {}", what, tensor.rows(), row));
  }
  return tensor;
}

// The name of a file in the set's directory that is not the manifest itself.
bool is_plain_name(std::string_view name) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  return !name.empty() && name.front() != '.' && name.size() < 256 && name.find('/') == std::string_view::npos &&
         std::ranges::none_of(name, is_control) && name != kManifestName;
}

std::vector<SetFile> files_of(const ManifestReader& reader, const Json& value, int world_size) {
  std::vector<SetFile> files;
  std::set<std::string> names;
  for (const Json& each : reader.list(value, "files")) {
    reader.object(each, "a file", {"name", "bytes", "rank", "host"});
    SetFile file{.name = reader.text(each["name"], "a file's name"),
                 .bytes = static_cast<std::uint64_t>(
                     reader.number(each["bytes"], "a file's size", std::numeric_limits<std::int64_t>::max())),
                 .rank = static_cast<int>(reader.number(each["rank"], "a file's rank", world_size - 1)),
                 .host = reader.text(each["host"], "a file's host")};
    if (!is_plain_name(file.name)) reader.refuse("invalid file name " + shown(file.name));
    if (!names.insert(file.name).second) reader.refuse("two files have the name " + shown(file.name));
    files.push_back(std::move(file));
  }
  return files;
}

// Before anything else: another version may have other members.
void check_version(const ManifestReader& reader, const Json& body, const Origin& origin) {
  reader.any_object(body, "it");
  if (!body.contains("format") || body["format"] != kFormat) reader.refuse("its 'format' is missing or unknown");
  if (!body.contains("version")) reader.refuse("it has no 'version'");
  const std::int64_t version = reader.number(body["version"], "the version", INT32_MAX);
  if (version == kVersion) return;
  throw_corrupt(origin, fmt::format("it has version {}; this build reads only version {}", version, kVersion));
}

// Of the whole; another kind of digest than the seal's, or a signature in another place, is an unknown member.
void require_members(const ManifestReader& reader, const Json& body, const Manifest& manifest) {
  Members members = {"format",
                     "version",
                     "step",
                     "world_size",
                     "written",
                     "files",
                     "tensors",
                     "metadata",
                     "metrics",
                     "user",
                     name_of(manifest.digest).key.data()};
  if (manifest.is_signed) members.push_back(kSignatureMember);
  reader.object(body, "it", members);
  if (manifest.is_signed && manifest.digest != DigestKind::sha_256) {
    reader.refuse("it is signed, but its digests are not SHA-256, so the signature does not cover the tensors");
  }
}

// JSON has no such numbers; a text that names the metric is better than one about the type of a member.
void check_metrics(const Manifest& manifest) {
  for (const auto& [name, value] : manifest.metrics) {
    if (std::isfinite(value)) continue;
    throw Error(ErrorKind::invalid_argument,
                fmt::format("the metric {} is {}; only finite numbers can be stored", shown(name), value));
  }
}

Json json_of(const SetTensor& tensor, DigestKind digest) {
  Json pieces = Json::array();
  for (const SetPiece& piece : tensor.pieces) {
    pieces.push_back(
        {{"file", piece.file}, {"rows", {piece.first_row, piece.end_row}}, {name_of(digest).key, piece.digest}});
  }
  return {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
}

}  // namespace

std::uint64_t SetTensor::row_bytes() const {
  const std::span<const std::int64_t> inner =
      shape.empty() ? std::span<const std::int64_t>() : std::span(shape).subspan(1);
  return product_or_most(inner, safetensors_element_size(dtype));
}

std::string time_of_writing() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string piece_name(const std::string& tensor, const SetTensor& of, const SetPiece& piece) {
  if (piece.first_row == 0 && piece.end_row == of.rows()) return tensor;
  return fmt::format("{}[{}:{}]", tensor, piece.first_row, piece.end_row);
}

std::string serialise(const Manifest& manifest, const SigningKey* key) {
  try {
    check_metrics(manifest);
    Json files = Json::array();
    for (const SetFile& file : manifest.files) {
      files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"rank", file.rank}, {"host", file.host}});
    }
    Json tensors = Json::object();
    for (const auto& [name, tensor] : manifest.tensors) tensors[name] = json_of(tensor, manifest.digest);
    const Json body = {{"format", kFormat},
                       {"version", kVersion},
                       {"step", manifest.step},
                       {"world_size", manifest.world_size},
                       {"written", manifest.written},
                       {"files", std::move(files)},
                       {"tensors", std::move(tensors)},
                       {"metadata", manifest.metadata},
                       {"metrics", manifest.metrics},
                       {"user", Json::parse(manifest.user)}};
    std::string text = sealed(body.dump(), manifest.digest, key);
    if (text.size() > ManifestLimits::kBytes) throw Error(ErrorKind::invalid_argument, "its manifest is too large");
    parse_manifest(text, Origin("the checkpoint"));
    return text;
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::invalid_argument, std::string("this checkpoint cannot be stored: ") + error.what());
  } catch (const Error& error) {
    throw Error(ErrorKind::invalid_argument, std::string("this checkpoint cannot be stored: ") + error.what());
  }
}

Manifest parse_manifest(ByteView json, const Origin& origin) {
  const ManifestReader reader(origin);
  if (json.size() > ManifestLimits::kBytes) reader.refuse(fmt::format("it is too large: {} bytes", json.size()));
  const ManifestSeal seal = check_seal(json, origin);
  const std::string problem = problem_of_json(json, ManifestLimits::kDepth + 1);
  if (!problem.empty()) reader.refuse(problem);
  const Json body = Json::parse(json);
  check_version(reader, body, origin);
  Manifest manifest{.digest = seal.digest, .is_signed = !seal.signature.empty()};
  require_members(reader, body, manifest);
  manifest.step =
      static_cast<std::uint64_t>(reader.number(body["step"], "the step", std::numeric_limits<std::int64_t>::max()));
  manifest.world_size = static_cast<int>(reader.number(body["world_size"], "the world size", kMostRanks, 1));
  manifest.written = reader.texts(body["written"], "written");
  manifest.metadata = reader.texts(body["metadata"], "metadata");
  for (const auto& [name, value] : reader.any_object(body["metrics"], "metrics").items()) {
    if (!value.is_number()) reader.refuse("metric " + shown(name) + " is not a number");
    manifest.metrics[name] = value.get<double>();
  }
  manifest.user = body["user"].dump();
  manifest.files = files_of(reader, body["files"], manifest.world_size);
  std::size_t pieces = 0;
  for (const auto& [name, value] : reader.any_object(body["tensors"], "tensors").items()) {
    SetTensor tensor = tensor_of(reader, name, value, manifest.files.size(), manifest.digest);
    pieces += tensor.pieces.size();
    manifest.tensors.emplace(name, std::move(tensor));
  }
  if (pieces > ManifestLimits::kPieces) reader.refuse(fmt::format("it has too many pieces: {}", pieces));
  return manifest;
}

}  // namespace lockstep::internal
