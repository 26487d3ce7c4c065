#include "lockstep/formats/sharded_safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/json_structure.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr std::uint64_t kIndexBytes = std::uint64_t{64} << 20;
constexpr int kIndexDepth = 2;

using Json = nlohmann::json;

[[noreturn]] void fail_index(const std::string& origin, const std::string& why) {
  throw Error(ErrorKind::corrupt_data, fmt::format("{} is not an index of safetensors files: {}", origin, why));
}

Bytes read_index(const SiblingFiles& files, const std::string& name) {
  const OpenFile file = files.open(name);
  const std::string path = files.path_of(name);
  if (file.bytes > kIndexBytes) {
    fail_index(path, fmt::format("it has {} bytes; the limit is {}", file.bytes, kIndexBytes));
  }
  return read_at(file.fd.get(), 0, file.bytes, "reading " + path);
}

}  // namespace

SafetensorsIndex internal::parse_safetensors_index(ByteView json, const std::string& origin) {
  if (const std::string problem = problem_of_json(json, kIndexDepth); !problem.empty()) fail_index(origin, problem);
  const Json root = Json::parse(json);
  if (!root.is_object() || !root.contains("weight_map") || !root.at("weight_map").is_object()) {
    fail_index(origin, "it has no 'weight_map'");
  }
  SafetensorsIndex index;
  for (const auto& [tensor, file] : root.at("weight_map").items()) {
    if (!file.is_string()) fail_index(origin, fmt::format("the file of {} is not a string", shown(tensor)));
    check_sibling_name(file.get_ref<const std::string&>(), origin);
    index.files.emplace(tensor, file.get<std::string>());
  }
  if (!root.contains("metadata") || !root.at("metadata").is_object()) return index;
  for (const auto& [key, value] : root.at("metadata").items()) {
    index.metadata.emplace(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return index;
}

ShardedSafetensorsReader::ShardedSafetensorsReader(const std::filesystem::path& index, Integrity integrity)
    : files_(index.parent_path()),
      integrity_(integrity),
      index_(parse_safetensors_index(read_index(files_, index.filename().string()), index.string())) {
  std::map<std::string, std::vector<std::string>> names;  // of tensors, by file
  for (const auto& [tensor, file] : index_.files) names[file].push_back(tensor);
  for (const auto& [file, wanted] : names) {
    const SafetensorsReader reader = open(file);
    std::map<std::string_view, const TensorEntry*> entries;
    for (const TensorEntry& entry : reader.header().tensors) entries.emplace(entry.name, &entry);
    for (const std::string& name : wanted) {
      const auto found = entries.find(name);
      if (found == entries.end()) {
        throw Error(ErrorKind::corrupt_data, fmt::format("{} lacks the tensor {}, which {} expects in it",
                                                         files_.path_of(file), shown(name), index.string()));
      }
      tensors_.push_back({.entry = *found->second, .file = file});
    }
  }
  std::ranges::sort(tensors_, {}, [](const ShardedTensor& tensor) -> const std::string& { return tensor.entry.name; });
}

SafetensorsReader ShardedSafetensorsReader::open(const std::string& file) const {
  return {files_.path_of(file), files_.open(file), integrity_};
}

const SafetensorsReader& ShardedSafetensorsReader::file_of(const ShardedTensor& tensor) const {
  if (!reading_ || reading_name_ != tensor.file) {
    reading_.reset();
    reading_ = std::make_unique<const SafetensorsReader>(open(tensor.file));
    reading_name_ = tensor.file;
  }
  return *reading_;
}

void ShardedSafetensorsReader::read(const ShardedTensor& tensor, MutableByteSpan out) const {
  file_of(tensor).read(tensor.entry, out);
}

TensorStream ShardedSafetensorsReader::stream(const ShardedTensor& tensor) const {
  return {file_of(tensor), tensor.entry};
}

std::vector<std::size_t> internal::plan_safetensors_shards(std::span<const TensorBytes> tensors,
                                                           std::uint64_t most_bytes) {
  std::vector<std::size_t> counts = {0};
  std::uint64_t bytes = 0;
  for (const TensorBytes& tensor : tensors) {
    const bool fits = bytes <= most_bytes && tensor.bytes.size() <= most_bytes - bytes;
    if (counts.back() > 0 && !fits) {
      counts.push_back(0);
      bytes = 0;
    }
    ++counts.back();
    bytes += tensor.bytes.size();
  }
  return counts;
}

std::filesystem::path write_sharded_safetensors(const std::filesystem::path& directory,
                                                std::span<const TensorBytes> tensors, std::uint64_t most_bytes,
                                                const std::map<std::string, std::string>& metadata,
                                                const std::string& stem) {
  const std::filesystem::path index = directory / (stem + ".safetensors.index.json");
  check_sibling_name(stem, "saving sharded safetensors");
  const std::vector<std::size_t> counts = plan_safetensors_shards(tensors, most_bytes);
  Json weight_map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string file = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, counts.size());
    const std::span<const TensorBytes> part = tensors.first(counts[i]);
    tensors = tensors.subspan(counts[i]);
    for (const TensorBytes& tensor : part) {
      if (weight_map.contains(tensor.name)) {
        throw Error(ErrorKind::invalid_argument,
                    fmt::format("saving {}: tensor {} appears twice", index.string(), shown(tensor.name)));
      }
      weight_map[tensor.name] = file;
      total += tensor.bytes.size();
    }
    write_safetensors(directory / file, part, {{"format", "pt"}});
  }
  Json json = {{"metadata", Json::object()}, {"weight_map", std::move(weight_map)}};
  for (const auto& [key, value] : metadata) json["metadata"][key] = value;
  json["metadata"]["total_size"] = total;
  AtomicFile file(index);
  const std::string text = json.dump(2) + "\n";
  file.write(std::as_bytes(std::span(text)));
  file.publish();
  return index;
}

}  // namespace lockstep
