// save() and load() store a whole training: model, optimizer, random numbers, sampler, hook, values of the program.
//   lockstep::State state{.model = ddp, .optimizer = optimizer, .sampler = sampler, .step = step};
//   lockstep::save("checkpoints", state, world, {.retention = {.keep_last = 3}});
//   const lockstep::Loaded loaded = lockstep::load("checkpoints", state, world);
// A checkpoint is a set of safetensors files and a manifest in its own directory, checkpoints/step-0000000400. Each
// rank writes a share of the replicated state, which is compared before the set appears, and all of its own state;
// load() works at any number of ranks, and each byte is read once per node. A set appears as a whole or not at all,
// whichever process dies, and replaces one of the same step. All data is verified before anything is changed, and
// nothing from a file is ever executed. Calls with a group are collective: all ranks make them, with the same
// directory, step, epoch, options and parts of the state, which are compared before any work. Metrics and the program's
// own values are rank 0's. An exception on one rank, also from the program's own objects, is the same error on all
// ranks. Calls without a group are for a single process; if all ranks of a job make such a call for one directory and
// step, the first of them writes. Both block, for disk I/O and as ProcessGroup's calls do. Error{invalid_argument}:
// state that cannot be stored, does not match or differs between ranks; then nothing has changed, or only sampler,
// loader, scaler, user and hook, if one of these throws while it is loaded. Error{internal}: a disk is full or failing,
// memory or file descriptors run out, a directory cannot be read; earlier checkpoints are kept.
// Error{corrupt_data}: no checkpoint is undamaged. Error{desync}: parameters or optimizer state differ between ranks,
// so there is no new checkpoint (SaveOptions::if_ranks_differ).
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

// Returns the path of the set.
std::filesystem::path save(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                           const SaveOptions& options = {});
std::filesystem::path save(const std::filesystem::path& directory, const State& state, const SaveOptions& options = {});

struct Loaded {
  std::filesystem::path path;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  int world_size = 0;  // of the save
  std::map<std::string, double> metrics = {};
};

// Loads the newest undamaged set in the directory, or the directory itself, if it is a set. A damaged set is skipped
// with a warning; one that another process replaces or removes during the load is not an error if there is another.
// Error{invalid_argument} if there is none. Error{unauthorized}: LoadOptions.
Loaded load(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
            const LoadOptions& options = {});
Loaded load(const std::filesystem::path& directory, const State& state, const LoadOptions& options = {});
// The same; empty if no set has been saved yet. Then a model or an optimizer that save() would refuse is an error at
// once, before hours of training that cannot be saved. A directory that cannot be read is an error, not an empty one.
// For programs that are restarted automatically.
std::optional<Loaded> load_if_any(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                                  const LoadOptions& options = {});

}  // namespace lockstep
