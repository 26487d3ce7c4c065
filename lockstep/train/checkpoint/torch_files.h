// Models and checkpoints that other programs write, as a Checkpoint: files of torch.save, of Python as of C++,
// directories of torch.distributed.checkpoint, and sharded safetensors of Hugging Face. file -> Checkpoint -> module.
// Nested values become names joined by '.': "model.fc.weight", "optimizer.param_groups.0.lr". Tensors are on the CPU
// and require no gradient. What is no tensor is in the metadata, as Python prints it; bytes as hexadecimal digits.
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

// {"cuda:0", "cuda:2"}: where tensors go that were saved on a device. It is PyTorch's map_location.
using DeviceMap = std::map<std::string, std::string>;

// A tensor that was saved by itself is called "tensor", any other value "value". Tensors of devices that the map does
// not name are on the CPU, so that nothing goes to another rank's GPU; load_module() brings them to the module's
// device.
Checkpoint load_torch_file(const std::filesystem::path& path, const DeviceMap& devices = {});

// Python reads it with torch.load(path), as a dict of tensors: what load_state_dict() takes. Names stay as they are.
// Tied tensors, those of one memory, are written once, and are tied where they are read. Replaces `path` atomically.
void save_torch_file(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors);
// The same as a part of what write_torch_file() writes. It refers to the tensors' memory where it can.
TorchValue torch_state_dict(const std::map<std::string, at::Tensor>& tensors);

// Reads a directory that ranks have saved with torch.distributed.checkpoint, whole: every tensor from all its chunks.
Checkpoint load_distributed_checkpoint(const std::filesystem::path& directory);

// `index` is model.safetensors.index.json, with the files that it names beside it.
Checkpoint load_sharded_safetensors(const std::filesystem::path& index);

namespace internal {

// Error{invalid_argument} names the tensor, if it is of a type or layout that is not stored.
TorchValue torch_value(const std::string& name, const at::Tensor& tensor);
at::Tensor read_tensor(const TorchFile& file, const std::string& name, const TorchTensor& saved);

}  // namespace internal

}  // namespace lockstep
