// save() and load() keep a whole training: model, optimizer, random numbers, sampler, hook, values of the program.
//   lockstep::State state{.model = ddp, .optimizer = optimizer, .sampler = sampler, .step = step};
//   lockstep::save("checkpoints", state, world, {.retention = {.keep_last = 3}});
//   const lockstep::Loaded loaded = lockstep::load("checkpoints", state, world);
// A checkpoint is a set of safetensors files and a manifest in a directory of its own, checkpoints/step-0000000400.
// Each rank writes a part of what all have, which is compared before the set appears, and what only it has; load()
// works at any number of ranks, and each byte is read once on each node. A set appears as a whole or not at all,
// whoever dies, and replaces one of the same step. Everything that is read is verified before anything is changed, and
// nothing from a file is ever executed. Calls with a group are collective: all ranks make them, with the same
// directory, step, epoch, options and parts of the state; that is compared before any work. Metrics and the program's
// own values are rank 0's. Whatever one rank throws, also from the program's own objects, is the same error on all of
// them. Calls without a group are for one process alone; if all ranks of a job make such a call for one directory and
// step, the first of them writes. Both block, for disks and as ProcessGroup's calls do. Error{invalid_argument}:
// something that cannot be stored, does not fit or differs among ranks; then nothing has changed, or only sampler,
// loader, user and hook, where one of these throws while it is loaded. Error{internal}: a disk is full or failing,
// memory or descriptors are lacking, a directory may not be read; earlier checkpoints are still there.
// Error{corrupt_data}: no checkpoint is whole. Error{desync}: ranks have other values of parameters or of the
// optimizer's state, and so there is no new checkpoint (SaveOptions::if_ranks_differ).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save_options.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep {

// Where the set is.
std::filesystem::path save(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                           const SaveOptions& options = {});
std::filesystem::path save(const std::filesystem::path& directory, const State& state, const SaveOptions& options = {});

struct Loaded {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int world_size = 0;  // of those who saved it
  std::map<std::string, double> metrics = {};
};

// The newest set in the directory that is whole, or the directory itself, if it is a set. One that is damaged is passed
// over with a warning; one that another process replaces or removes meanwhile is no error as long as there is another.
// Error{invalid_argument} if there is none. Error{unauthorized}: LoadOptions.
Loaded load(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
            const LoadOptions& options = {});
Loaded load(const std::filesystem::path& directory, const State& state, const LoadOptions& options = {});
// The same; nothing where no set has been saved yet. Then a model or an optimizer that save() would refuse is an error
// at once, before hours are trained that cannot be kept. A directory that cannot be looked into is an error, not an
// empty one. For programs that are started again by themselves.
std::optional<Loaded> load_if_any(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  const LoadOptions& options = {});

}  // namespace lockstep
