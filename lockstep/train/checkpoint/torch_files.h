// Models and checkpoints that other programs write, as a Checkpoint: files of torch.save from Python and C++,
// directories of torch.distributed.checkpoint, and sharded safetensors of Hugging Face. file -> Checkpoint -> module.
// Nested values become names joined by '.': "model.fc.weight", "optimizer.param_groups.0.lr". Tensors are on the CPU
// and require no gradient. Other values are in the metadata, as Python prints them; bytes as hexadecimal digits.
// Blocks for disk I/O. Nothing from a file is ever executed. Errors as of TorchFile and SafetensorsReader.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/formats/torch_file_writer.h"
#include "lockstep/train/checkpoint/checkpoint.h"

namespace lockstep {

class TorchFile;
struct TorchTensor;

// {"cuda:0", "cuda:2"}: maps the device of a saved tensor to that of the loaded one, like PyTorch's map_location.
using DeviceMap = std::map<std::string, std::string>;

// A tensor that was saved by itself is called "tensor", any other value "value". Tensors of devices that are not in the
// map are loaded to the CPU, not to another rank's GPU; load_module() moves them to the module's device.
Checkpoint load_torch_file(const std::filesystem::path& path, const DeviceMap& devices = {});

// Python reads it with torch.load(path) as a dict of tensors for load_state_dict(). Names are unchanged. Tied tensors,
// which share memory, are written once, and are tied again when read. Replaces `path` atomically.
void save_torch_file(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors);
// The same, as a part of a value for write_torch_file(). It refers to the tensors' memory where possible.
TorchValue torch_state_dict(const std::map<std::string, at::Tensor>& tensors);

// Reads a whole directory that was saved with torch.distributed.checkpoint: every tensor from all its chunks.
Checkpoint load_distributed_checkpoint(const std::filesystem::path& directory);

// `index` is model.safetensors.index.json, in the same directory as the files that it names.
Checkpoint load_sharded_safetensors(const std::filesystem::path& index);

namespace internal {

// Error{invalid_argument} names the tensor, if its type or layout cannot be stored.
TorchValue torch_value(const std::string& name, const at::Tensor& tensor);
at::Tensor read_tensor(const TorchFile& file, const std::string& name, const TorchTensor& saved);

}  // namespace internal

}  // namespace lockstep
