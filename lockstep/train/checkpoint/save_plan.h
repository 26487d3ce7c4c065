// The first step of a save: State -> SaveJob, which says which rows of which tensors this rank writes. Training can
// continue before the second step (set_writing.h), once the rows are copied (part_copies.h) and this rank's replicas of
// the rows that others write are digested (replicas.h). plan_save() is collective; errors are the same on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/manifest.h"
#include "lockstep/train/checkpoint/retention.h"
#include "lockstep/train/checkpoint/save_options.h"
#include "lockstep/train/checkpoint/signing_key.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep::internal {

struct SaveJob {
  struct Part {
    std::string name;   // piece_name()
    at::Tensor tensor;  // rows of the program's own memory, or a copy of them
    bool is_copied = false;
    bool is_stepped = false;     // only the step of an optimizer changes it
    bool is_replicated = false;  // all ranks must have equal values
    std::uint32_t version = 0;   // version_of(tensor), as planned
  };

  std::filesystem::path directory;
  Retention retention;
  SingleFiles single_files = SingleFiles::left_alone;
  bool replaces_earlier_run = false;  // see earlier_run.h
  std::optional<SigningKey> key;      // on rank 0; none: it is not signed
  std::vector<Part> parts;            // that this rank writes
  std::vector<Part> of_others;        // this rank's values of replicated parts that others write
  // Of all ranks; files are to come. Pieces have the index of their rank in place of a file.
  Manifest manifest;
};

// Error{invalid_argument}: something that cannot be stored, or differs among ranks. Values are not compared here.
SaveJob plan_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options,
                  const ProcessGroup& group);
SaveJob plan_save_alone(const std::filesystem::path& directory, const State& state, const SaveOptions& options);

// PyTorch's counter of changes in place.
std::uint32_t version_of(const at::Tensor& tensor);

}  // namespace lockstep::internal
