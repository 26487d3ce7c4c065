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

#include "lockstep/base/error.h"
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
    bool is_copied = false;
    bool is_stepped = false;    // only the step of an optimizer changes it
    std::uint32_t version = 0;  // version_of(tensor), as planned
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

// Grows with every change in place that PyTorch knows of.
std::uint32_t version_of(const at::Tensor& tensor);

// Where the set is. Error{internal}: a disk is full or failing; what was there before is still there. failure: why this
// rank has nothing to write; then it is the error on all ranks.
std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group, const std::optional<Error>& failure = {});
std::filesystem::path run_save_alone(SaveJob& job);

}  // namespace lockstep::internal
