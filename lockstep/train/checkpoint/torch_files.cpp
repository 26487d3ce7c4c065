#include "lockstep/train/checkpoint/torch_files.h"

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/distributed_checkpoint.h"
#include "lockstep/formats/pickle_text.h"
#include "lockstep/formats/sharded_safetensors.h"
#include "lockstep/formats/torch_file.h"
#include "lockstep/formats/torch_file_writer.h"
#include "lockstep/train/checkpoint/tensor_types.h"

namespace lockstep {

using namespace internal;

namespace {

template <class Value>
void add_once(std::map<std::string, Value>& values, const std::string& file, const std::string& name, Value value) {
  if (values.emplace(name, std::move(value)).second) return;
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: two values have the name '{}'", file, name));
}

// Adds everything in the file, under names that begin with `prefix`. places: by the device that a tensor was saved on.
void add_file(Checkpoint& checkpoint, const TorchFile& file, const std::string& prefix,
              const std::map<std::string, at::Device>& places = {}) {
  std::vector<std::pair<std::string, TorchTensor>> tensors;
  std::uint64_t bytes = 0;
  for (const auto& [name, value] : flatten(file.root())) {
    const bool is_tensor = value.is_tensor();
    const std::string whole = name.empty()     ? (!prefix.empty() ? prefix
                                                  : is_tensor     ? "tensor"
                                                                  : "value")
                              : prefix.empty() ? name
                                               : fmt::format("{}.{}", prefix, name);
    if (!is_tensor) {
      add_once(checkpoint.metadata, file.name(), whole, value_text(value));
      continue;
    }
    tensors.emplace_back(whole, file.tensor(value));
    check_memory(file.name(), tensors.back().second.bytes);
    bytes += tensors.back().second.bytes;
    check_memory(file.name(), bytes);
  }
  for (const auto& [name, saved] : tensors) {
    at::Tensor tensor = read_tensor(file, name, saved);
    const auto place = places.find(saved.device);
    add_once(checkpoint.tensors, file.name(), name, place == places.end() ? tensor : tensor.to(place->second));
  }
}

// The same for tied tensors: of one memory, and with the same layout. `plain` is the tensor as it is written, which
// keeps its memory, or a copy with its own.
std::string memory_of(const at::Tensor& tensor, const at::Tensor& plain) {
  if (!tensor.has_storage() || tensor.numel() == 0 || !plain.is_alias_of(tensor)) return "";
  return fmt::format("{} {} {} [{}] [{}]", fmt::ptr(tensor.storage().unsafeGetStorageImpl()), tensor.storage_offset(),
                     c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     fmt::join(tensor.strides(), ","));
}

// Error{invalid_argument} names an invalid device.
at::Device device_of(const std::string& name) {
  try {
    return at::Device(name);
  } catch (const c10::Error& error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("a DeviceMap has the invalid device '{}': {}", name, error.what_without_backtrace()));
  }
}

}  // namespace

Checkpoint load_torch_file(const std::filesystem::path& path, const DeviceMap& devices) {
  std::map<std::string, at::Device> places;
  for (const auto& [saved_on, name] : devices) places.emplace(saved_on, device_of(name));
  Checkpoint checkpoint;
  add_file(checkpoint, TorchFile(path), "", places);
  return checkpoint;
}

TorchValue torch_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  TorchValue::Dict dict;
  for (const auto& [name, tensor] : tensors) dict.emplace_back(name, torch_value(name, tensor));
  return {std::move(dict)};
}

void save_torch_file(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors) {
  write_torch_file(path, torch_state_dict(tensors));
}

TorchValue internal::torch_value(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor plain = plain_copy(name, tensor);
  const std::string dtype(dtype_name(plain.scalar_type()));
  if (dtype.empty()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("saving for PyTorch: tensor '{}' has the type {}, which cannot be stored", name,
                            c10::toString(plain.scalar_type())));
  }
  TorchTensorSource source{
      .dtype = dtype, .shape = plain.sizes().vec(), .write = {}, .storage = memory_of(tensor, plain)};
  source.write = [plain](const ByteSink& sink) { sink(bytes_of(plain)); };
  return {std::move(source)};
}

at::Tensor internal::read_tensor(const TorchFile& file, const std::string& name, const TorchTensor& saved) {
  at::Tensor tensor = new_tensor(file.name(), name, saved.dtype, saved.shape);
  file.read(saved, mutable_bytes_of(tensor));
  return tensor;
}

Checkpoint load_distributed_checkpoint(const std::filesystem::path& directory) {
  const DistributedCheckpoint saved(directory);
  Checkpoint checkpoint;
  std::uint64_t bytes = 0;
  for (const DistributedTensor& tensor : saved.tensors()) {
    check_memory(directory.string(), tensor.bytes);
    bytes += tensor.bytes;
    check_memory(directory.string(), bytes);
  }
  for (const DistributedTensor& each : saved.tensors()) {
    at::Tensor tensor = new_tensor(directory.string(), each.name, each.dtype, each.shape);
    saved.read(each, mutable_bytes_of(tensor));
    checkpoint.tensors.emplace(each.name, std::move(tensor));
  }
  for (const std::string& name : saved.value_names()) add_file(checkpoint, saved.read_value(name), name);
  return checkpoint;
}

Checkpoint load_sharded_safetensors(const std::filesystem::path& index) {
  const ShardedSafetensorsReader reader(index);
  Checkpoint checkpoint{.metadata = reader.metadata()};
  std::uint64_t bytes = 0;
  for (const ShardedTensor& each : reader.tensors()) bytes += each.entry.end - each.entry.begin;
  check_memory(index.string(), bytes);
  for (const ShardedTensor& each : reader.tensors()) {
    at::Tensor tensor = new_tensor(index.string(), each.entry.name, each.entry.dtype, each.entry.shape);
    reader.read(each, mutable_bytes_of(tensor));
    checkpoint.tensors.emplace(each.entry.name, std::move(tensor));
  }
  return checkpoint;
}

}  // namespace lockstep
