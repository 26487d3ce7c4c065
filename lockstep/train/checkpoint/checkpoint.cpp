#include "lockstep/train/checkpoint/checkpoint.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/live_numbers.h"
#include "lockstep/train/checkpoint/tensor_types.h"

namespace lockstep {

using namespace internal;

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                     const CheckpointFileOptions& options) {
  std::vector<at::Tensor> storage;  // keeps copies alive; a contiguous CPU tensor is not copied
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const at::Tensor& plain = storage.emplace_back(plain_copy(name, tensor));
    tensors.push_back(
        {.name = name, .dtype = stored_type(name, plain), .shape = plain.sizes().vec(), .bytes = bytes_of(plain)});
  }
  write_safetensors(path, tensors, checkpoint.metadata);
  if (options.keep_last != 0) keep_last_steps(path, options.keep_last);
  count_checkpoint();
}

Checkpoint load_checkpoint(const std::filesystem::path& path, Integrity integrity) {
  const SafetensorsReader reader(path, integrity);
  const std::vector<TensorEntry>& entries = reader.header().tensors;
  check_memory(path.string(), entries.empty() ? 0 : entries.back().end);
  Checkpoint checkpoint{.metadata = reader.header().metadata};
  for (const TensorEntry& entry : entries) {
    at::Tensor tensor = new_tensor(path.string(), entry.name, entry.dtype, entry.shape);
    reader.read(entry, mutable_bytes_of(tensor));
    checkpoint.tensors.emplace(entry.name, std::move(tensor));
  }
  return checkpoint;
}

std::optional<LatestCheckpoint> latest_checkpoint(const std::filesystem::path& directory) {
  for (const StepFile& file : list_step_files(directory)) {
    try {
      return LatestCheckpoint{file.step, file.path, load_checkpoint(file.path)};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt_data) throw;
      log_warning(fmt::format("the checkpoint of step {} is skipped: {}", file.step, error.what()));
    }
  }
  return std::nullopt;
}

std::map<std::string, at::Tensor> strip_prefix(const std::map<std::string, at::Tensor>& tensors,
                                               std::string_view prefix) {
  std::map<std::string, at::Tensor> stripped;
  for (const auto& [name, tensor] : tensors) {
    const std::string shorter = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    if (!stripped.emplace(shorter, tensor).second) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("removing the prefix '{}' would give two tensors the name '{}'", prefix, shorter));
    }
  }
  return stripped;
}

}  // namespace lockstep
