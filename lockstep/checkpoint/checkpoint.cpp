#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"

namespace lockstep {

using namespace internal;

namespace {

// In the order of kSafetensorsTypes.
constexpr std::array kScalarTypes{at::kBool,   at::kByte,     at::kChar,   at::kUInt16, at::kShort,
                                  at::kHalf,   at::kBFloat16, at::kUInt32, at::kInt,    at::kFloat,
                                  at::kUInt64, at::kLong,     at::kDouble};
static_assert(kScalarTypes.size() == kSafetensorsTypes.size());

// REQUIRES: the reader has checked the name.
at::ScalarType scalar_type(std::string_view name) {
  const auto* found = std::ranges::find(kSafetensorsTypes, name, &SafetensorsType::name);
  return kScalarTypes.at(static_cast<std::size_t>(found - kSafetensorsTypes.begin()));
}

std::string type_name(const std::string& tensor_name, const at::Tensor& tensor) {
  const auto* found = std::ranges::find(kScalarTypes, tensor.scalar_type());
  if (found == kScalarTypes.end()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' has the type {}, which is not stored",
                                                         tensor_name, c10::toString(tensor.scalar_type())));
  }
  return std::string(kSafetensorsTypes.at(static_cast<std::size_t>(found - kScalarTypes.begin())).name);
}

at::Tensor plain_copy(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' is undefined", name));
  }
  if (tensor.layout() != at::kStrided) {
    throw Error(ErrorKind::invalid_argument, fmt::format("checkpoint: tensor '{}' is not a dense one", name));
  }
  return tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
}

// A file can be larger than what it takes of a disk.
void check_memory(const std::filesystem::path& path, const SafetensorsHeader& header) {
  const std::uint64_t bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
  if (bytes <= machine_memory_bytes()) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: its tensors take {} bytes; this machine has {} of memory",
                                                       path.string(), bytes, machine_memory_bytes()));
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint, const SaveOptions& options) {
  std::vector<at::Tensor> storage;  // keeps copies alive; a contiguous CPU tensor is not copied
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const at::Tensor& plain = storage.emplace_back(plain_copy(name, tensor));
    tensors.push_back({.name = name,
                       .dtype = type_name(name, plain),
                       .shape = plain.sizes().vec(),
                       .bytes = {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()}});
  }
  write_safetensors(path, tensors, checkpoint.metadata);
  if (options.keep_last != 0) keep_last_steps(path, options.keep_last);
}

Checkpoint load_checkpoint(const std::filesystem::path& path, Integrity integrity) {
  const SafetensorsReader reader(path, integrity);
  check_memory(path, reader.header());
  Checkpoint checkpoint{.metadata = reader.header().metadata};
  for (const TensorEntry& entry : reader.header().tensors) {
    at::Tensor tensor;
    try {
      tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type(entry.dtype)).device(at::kCPU));
    } catch (const c10::Error& error) {
      throw Error(ErrorKind::invalid_argument, fmt::format("{}: no memory for tensor '{}': {}", path.string(),
                                                           entry.name, error.what_without_backtrace()));
    }
    reader.read(entry, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
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
      log_warning(fmt::format("checkpoint of step {} is passed over: {}", file.step, error.what()));
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
                  fmt::format("without the prefix '{}' there would be two tensors called '{}'", prefix, shorter));
    }
  }
  return stripped;
}

}  // namespace lockstep
