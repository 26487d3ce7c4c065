// Checkpoints: named tensors and strings in one safetensors file, published atomically and verified when read.
// module, optimizer, random state -> Checkpoint -> file -> Checkpoint -> ...
// save_checkpoint() is for one rank; others wait for it (a barrier) before they load. If several ranks save the same
// path by mistake, the file is intact and that of one rank. Blocks for disk I/O. Nothing from a file is ever executed.
// Error{corrupt_data}: any damage, with file, tensor, position, expected and found. Error{internal}: the disk is full
// or failing; an old file of that name is kept. Error{invalid_argument}: no such file or directory, names or types that
// cannot be stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/formats/safetensors/safetensors_file.h"
#include "lockstep/train/checkpoint/step_files.h"

namespace lockstep {

// Metadata names must not begin with "lockstep.", which the file's integrity record uses.
struct Checkpoint {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
};

struct CheckpointFileOptions {
  // After saving, keep only this many files named by step_path() in the directory, the newest and the one just written;
  // 0 keeps all. REQUIRES, if not 0: the path is one of step_path().
  int keep_last = 0;
};

// Tensors of any device and layout are stored as contiguous CPU data.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint,
                     const CheckpointFileOptions& options = {});

// Tensors are on the CPU. Reads all of the file; memory is bounded by its size.
Checkpoint load_checkpoint(const std::filesystem::path& path, Integrity integrity = Integrity::required);

struct LatestCheckpoint {
  std::uint64_t step = 0;
  std::filesystem::path path;  // of the file that was read
  Checkpoint checkpoint;
};

// The undamaged file with the highest step among those named by step_path(); empty if there is none. Logs a warning for
// each damaged file that it skips.
std::optional<LatestCheckpoint> latest_checkpoint(const std::filesystem::path& directory);

// The same tensors with `prefix` removed from names that begin with it; other names are unchanged, also if they contain
// the prefix elsewhere. Error{invalid_argument} if two names become equal.
std::map<std::string, at::Tensor> strip_prefix(const std::map<std::string, at::Tensor>& tensors,
                                               std::string_view prefix);

}  // namespace lockstep
