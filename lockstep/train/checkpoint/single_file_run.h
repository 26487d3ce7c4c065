// Resumes a TrainingRun from a single file, step-0000000400.safetensors, as earlier versions wrote them. Its tensors
// and its metadata have the names of today's sets.
#pragma once

#include <filesystem>
#include <functional>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/run_metadata.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep::internal {

// Loads the file of a step. Collective; errors are the same on all ranks, and then nothing has changed. accept: throws
// if it refuses the file by its metadata. Error{invalid_argument}: the file does not fit the state, or has no sampler,
// loader, scaler, hook or user values, which single files never have. Returns the number of ranks that wrote the file;
// 0 if it does not matter.
int load_single_file(const std::filesystem::path& file, const State& state, const ProcessGroup& group,
                     const std::function<void(const Metadata& metadata)>& accept);

}  // namespace lockstep::internal
