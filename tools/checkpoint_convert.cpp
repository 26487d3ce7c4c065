// `lockstep checkpoint convert` and `strip-prefix`: copies a checkpoint, as a file or as a set, without holding it in
// memory. What is written appears as a whole, or not at all.

#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/job/inspect/finding.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "tools/checkpoint_command.h"
#include "tools/checkpoint_places.h"
#include "tools/progress.h"
#include "tools/standard_output.h"
#include "tools/tensor_source.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr const char* kOnlyPart = "part-00000-of-00001.safetensors";

// Old names by new ones.
using Names = std::map<std::string, std::string>;

enum class OutputKind { file, set };

OutputKind output_kind(const CheckpointOptions& options) {
  if (options.to == "file") return OutputKind::file;
  const std::filesystem::path out = options.other;
  const auto step = step_of_set(out);
  if (step && set_path(out.parent_path(), *step) == out) return OutputKind::set;
  if (options.to.empty() && out.extension() == ".safetensors") return OutputKind::file;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: its name does not show whether it is a file or a set; a set is DIR/step-0000000400, "
                          "with ten digits, and a file ends with .safetensors, or needs --to file",
                          options.other));
}

std::vector<StreamedTensor> streamed(TensorSource& source, const Names& names, Progress& progress,
                                     std::uint64_t& copied) {
  std::vector<StreamedTensor> tensors;
  for (const auto& [name, old_name] : names) {
    const SourceTensor& tensor = source.tensors().at(old_name);
    tensors.push_back({.name = name,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .bytes = [&source, &progress, &copied, old = old_name](const auto& sink) {
                         const auto stream = source.stream(old);
                         for_all_bytes(*stream, [&](ByteSpan bytes) {
                           sink(bytes);
                           progress.at(copied += bytes.size());
                         });
                       }});
  }
  return tensors;
}

void write_one_file(const std::filesystem::path& out, const SourceFacts& facts,
                    const std::vector<StreamedTensor>& tensors) {
  std::map<std::string, std::string> metadata = facts.metadata;
  if (facts.kind == "set" || facts.world_size) {
    if (!metadata.emplace(kSetFacts, set_facts_of(facts)).second) {
      throw Error(
          ErrorKind::invalid_argument,
          fmt::format("its metadata already has the name '{}', under which the step and metrics of a set are stored",
                      kSetFacts));
    }
  }
  stream_safetensors(out, tensors, metadata);
}

void write_one_set(const std::filesystem::path& out, const TensorSource& source, const Names& names,
                   const std::vector<StreamedTensor>& tensors) {
  const SourceFacts& facts = source.facts();
  const std::uint64_t step = step_of_set(out).value();
  SetDirectory set(out.parent_path(), step);
  const WrittenFile part = stream_safetensors(set.path() / kOnlyPart, tensors, {});
  Manifest manifest{.step = step,
                    .world_size = facts.world_size.value_or(1),
                    .written = facts.written,
                    .metadata = facts.metadata,
                    .metrics = facts.metrics,
                    .user = facts.user};
  manifest.written.emplace("time", time_of_writing());
  manifest.files = {{.name = kOnlyPart, .bytes = part.bytes, .rank = 0, .host = internal::host_name()}};
  for (const auto& [name, old_name] : names) {
    const SourceTensor& tensor = source.tensors().at(old_name);
    SetTensor& stored = manifest.tensors[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
    stored.pieces = {{.file = 0, .first_row = 0, .end_row = stored.rows(), .digest = part.digests.at(name)}};
  }
  set.publish(serialise(manifest));
}

int copy_checkpoint(const CheckpointOptions& options, TensorSource& source, const Names& names) {
  const std::filesystem::path out = options.other;
  const OutputKind kind = output_kind(options);
  std::error_code error;
  if (!options.force && std::filesystem::exists(std::filesystem::symlink_status(out, error))) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: it already exists; --force replaces it", out.string()));
  }
  {
    Progress progress("writing " + out.filename().string(), source.tensor_bytes());
    std::uint64_t copied = 0;
    const std::vector<StreamedTensor> tensors = streamed(source, names, progress, copied);
    if (kind == OutputKind::file) {
      write_one_file(out, source.facts(), tensors);
    } else {
      write_one_set(out, source, names, tensors);
    }
  }
  if (options.json) {
    print_json({{"path", out.string()}, {"tensors", names.size()}, {"tensor_bytes", source.tensor_bytes()}});
  } else {
    print(fmt::format("{}: {} tensors, {}\n", out.string(), names.size(),
                      bytes_text(static_cast<double>(source.tensor_bytes()))));
  }
  return EXIT_SUCCESS;
}

}  // namespace

int convert_checkpoint(const CheckpointOptions& options) {
  const auto source = open_tensors(options.path);
  Names names;
  for (const auto& [name, tensor] : source->tensors()) names[name] = name;
  return copy_checkpoint(options, *source, names);
}

int rename_tensors(const CheckpointOptions& options) {
  const auto source = open_tensors(options.path);
  Names names;
  bool has_changed = !options.add_prefix.empty();
  for (const auto& [name, tensor] : source->tensors()) {
    std::string other = options.add_prefix + name;
    if (!options.prefix.empty() && name.starts_with(options.prefix)) {
      other = name.substr(options.prefix.size());
      has_changed = true;
    }
    const auto [place, is_new] = names.emplace(other, name);
    if (is_new) continue;
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: '{}' and '{}' would both get the name '{}'", options.path,
                                                         place->second, name, other));
  }
  if (!has_changed) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: no tensor has a name that begins with '{}'", options.path, options.prefix));
  }
  return copy_checkpoint(options, *source, names);
}

}  // namespace lockstep::tools
