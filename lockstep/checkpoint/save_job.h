// One save: State -> SaveJob -> files of all ranks -> a published set. Two steps, so that training can go on between
// them: plan_save() says which rows of which tensors this rank writes, and run_save() writes them. Both are collective;
// errors are the same on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/save_options.h"
#include "lockstep/checkpoint/shard_plan.h"
#include "lockstep/checkpoint/signing_key.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/group/process_group.h"

namespace lockstep::internal {

struct SaveJob {
  struct Part {
    std::string name;   // piece_name()
    at::Tensor tensor;  // rows of the program's own memory, or a copy of them
  };

  std::filesystem::path directory;
  Retention retention;
  std::optional<SigningKey> key;  // on rank 0; none: it is not signed
  std::vector<Part> parts;        // that this rank writes
  // Of all ranks; files are to come. Pieces have the index of their rank in place of a file.
  Manifest manifest;
};

// Error{invalid_argument}: something that cannot be stored, or differs among ranks.
SaveJob plan_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options,
                  const ProcessGroup& group);
SaveJob plan_save_alone(const std::filesystem::path& directory, const State& state, const SaveOptions& options);

// From here on the program may change its tensors.
void copy_parts(SaveJob& job);

// Where the set is. Error{internal}: a disk is full or failing; what was there before is still there.
std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group);
std::filesystem::path run_save_alone(SaveJob& job);

}  // namespace lockstep::internal
