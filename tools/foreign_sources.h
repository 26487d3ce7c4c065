// Checkpoints of other programs, for open_tensors(): files of torch.save (Python's and C++'s, old and new), directories
// of torch.distributed.checkpoint, and the index of sharded safetensors. What is no tensor is metadata, as text.
// Nothing from a file is ever executed. Errors as of TorchFile and SafetensorsReader.
#pragma once

#include <filesystem>
#include <memory>

#include "tools/tensor_source.h"

namespace lockstep::tools {

// nullptr: it is none of these, by its first bytes or by what lies in the directory.
std::unique_ptr<TensorSource> open_foreign_tensors(const std::filesystem::path& path);

}  // namespace lockstep::tools
