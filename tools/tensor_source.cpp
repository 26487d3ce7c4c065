#include "tools/tensor_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_reader.h"
#include "lockstep/train/checkpoint/signature_check.h"
#include "lockstep/train/checkpoint/step_files.h"
#include "tools/checkpoint_places.h"
#include "tools/foreign_sources.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr std::size_t kPartBytes = std::size_t{4} << 20;

// The pieces of a tensor one after the other.
class PiecesStream : public ByteStream {
 public:
  PiecesStream(SetReader& set, const std::string& name)
      : set_(set), name_(name), tensor_(set.manifest().tensors.at(name)), left_(tensor_.bytes()) {
    next_piece();
  }
  std::uint64_t left() const override { return left_; }
  void read(MutableByteSpan out) override {
    while (!out.empty()) {
      const std::size_t count = std::min<std::uint64_t>(out.size(), piece_->left());
      piece_->read(out.first(count));
      left_ -= count;
      out = out.subspan(count);
      if (piece_->left() == 0 && left_ != 0) next_piece();
    }
  }

 private:
  void next_piece() { piece_.emplace(set_.stream(name_, tensor_.pieces[next_++])); }

  SetReader& set_;
  const std::string name_;
  const SetTensor& tensor_;
  std::uint64_t left_;
  std::size_t next_ = 0;
  std::optional<TensorStream> piece_;
};

class SetSource : public TensorSource {
 public:
  explicit SetSource(const std::filesystem::path& path) : set_(path) { read(path); }
  // Of one text, also if somebody replaces it meanwhile.
  SetSource(const std::filesystem::path& path, const Bytes& manifest, SignatureState signature)
      : set_(path, parse_manifest(manifest, Origin((path / kManifestName).string()))) {
    read(path);
    facts_.signature = to_string(signature);
  }
  std::unique_ptr<ByteStream> stream(const std::string& name) override {
    return std::make_unique<PiecesStream>(set_, name);
  }
  void verify(const std::function<void(std::uint64_t)>& progress) override { set_.verify(progress); }

 private:
  void read(const std::filesystem::path& path) {
    const Manifest& manifest = set_.manifest();
    const auto step = step_of_set(path.has_filename() ? path : path.parent_path());
    if (step && *step != manifest.step) {
      throw Error(ErrorKind::corrupt_data, fmt::format("{} has step {}, which differs from the step in the set's name",
                                                       (path / kManifestName).string(), manifest.step));
    }
    set_.check_files();
    facts_ = {.kind = "set",
              .files = manifest.files.size(),
              .modified_seconds = modified_seconds_of(path / kManifestName),
              .step = manifest.step,
              .world_size = manifest.world_size,
              .written = manifest.written,
              .metadata = manifest.metadata,
              .metrics = manifest.metrics,
              .user = manifest.user};
    for (const SetFile& file : manifest.files) facts_.bytes += file.bytes;
    for (const auto& [name, tensor] : manifest.tensors) {
      tensors_[name] = {.dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.bytes()};
    }
  }

  SetReader set_;
};

// Takes back what set_facts_of() has put into the metadata. Another program's string of that name is left there.
void take_set_facts(SourceFacts& facts) {
  const auto found = facts.metadata.find(kSetFacts);
  if (found == facts.metadata.end()) return;
  const nlohmann::json said = nlohmann::json::parse(found->second, nullptr, false);
  if (!said.is_object()) return;
  try {
    SourceFacts taken = facts;
    taken.step = said.at("step").get<std::uint64_t>();
    taken.world_size = checked_between(said.at("world_size").get<std::int64_t>(), 1, kMostRanks, "world size",
                                       Origin("a file's metadata"));
    taken.written = said.at("written").get<std::map<std::string, std::string>>();
    taken.metrics = said.at("metrics").get<std::map<std::string, double>>();
    taken.user = said.at("user").dump();
    taken.metadata.erase(kSetFacts);
    facts = std::move(taken);
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
}

class FileSource : public TensorSource {
 public:
  explicit FileSource(const std::filesystem::path& path) : file_(path, Integrity::if_present) {
    facts_ = {.kind = "file",
              .bytes = std::filesystem::file_size(path),
              .modified_seconds = modified_seconds_of(path),
              .step = {},
              .has_digests = file_.has_digests(),
              .metadata = file_.header().metadata};
    take_set_facts(facts_);
    if (const auto step = step_of(path)) facts_.step = step;
    for (const TensorEntry& entry : file_.header().tensors) {
      tensors_[entry.name] = {.dtype = entry.dtype, .shape = entry.shape, .bytes = entry.end - entry.begin};
      entries_[entry.name] = &entry;
    }
  }
  std::unique_ptr<ByteStream> stream(const std::string& name) override {
    return std::make_unique<FileStream>(TensorStream(file_, *entries_.at(name)));
  }

 private:
  SafetensorsReader file_;
  std::map<std::string, const TensorEntry*> entries_;
};

}  // namespace

std::uint64_t TensorSource::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

void TensorSource::verify(const std::function<void(std::uint64_t)>& progress) {
  std::uint64_t read_so_far = 0;
  for (const auto& [name, tensor] : tensors_) {
    const auto bytes = stream(name);
    for_all_bytes(*bytes, [&](ByteSpan part) { progress(read_so_far += part.size()); });
  }
}

double modified_seconds_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

namespace {

// Error for a directory without a manifest: says what to name instead.
[[noreturn]] void refuse_directory(const std::filesystem::path& path) {
  const std::vector<CheckpointPlace> places = checkpoint_places(path);
  if (places.empty())
    throw Error(ErrorKind::invalid_argument,
                path.string() + " contains no checkpoint; name a file, a set, or the directory of sets");
  throw Error(ErrorKind::invalid_argument, fmt::format("{} is a directory of checkpoints; name one of them, such as {}",
                                                       path.string(), places.front().path.string()));
}

}  // namespace

std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path) {
  if (auto foreign = open_foreign_tensors(path)) return foreign;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const bool is_named_set = step_of_set(path.has_filename() ? path : path.parent_path()).has_value();
    if (!is_named_set && !std::filesystem::exists(path / kManifestName, error) && !error) refuse_directory(path);
    return std::make_unique<SetSource>(path);
  }
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path, const SignatureCheck& signature) {
  std::error_code error;
  if (!std::filesystem::exists(path / kManifestName, error)) return open_tensors(path);
  const Bytes manifest = SetReader::read_manifest(path);
  return std::make_unique<SetSource>(path, manifest, signature.check(manifest, path / kManifestName));
}

std::string set_facts_of(const SourceFacts& facts) {
  return nlohmann::json{{"step", facts.step.value_or(0)},
                        {"world_size", facts.world_size.value_or(1)},
                        {"written", facts.written},
                        {"metrics", facts.metrics},
                        {"user", nlohmann::json::parse(facts.user)}}
      .dump();
}

void for_all_bytes(ByteStream& stream, const std::function<void(ByteSpan)>& take) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPartBytes, stream.left()));
  while (stream.left() != 0) {
    const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), stream.left()));
    stream.read(part);
    take(part);
  }
}

}  // namespace lockstep::tools
