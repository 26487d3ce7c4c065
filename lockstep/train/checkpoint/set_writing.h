// Carries out what save_plan.h has planned: SaveJob -> files of all ranks -> a published set. Blocks for disk I/O.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/replicas.h"
#include "lockstep/train/checkpoint/save_plan.h"

namespace lockstep::internal {

// Collective. Where the set is; errors are the same on all ranks. Error{internal}: a disk is full or failing; what was
// there before is still there. Error{desync}: ranks have other values of what is replicated; nothing is published.
// failure: why this rank has nothing to write; then it is the error on all ranks. of_others: the digests of
// job.of_others, where these may have changed since; nothing: they are read while the files are written.
// The retention is carried out by rank 0 once all ranks know that the set is there, so nobody waits for it in a
// collective; it takes a quarter of the group's timeout at most, and what is left then goes with the next save.
std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group, const std::optional<Error>& failure = {},
                               std::optional<ReplicaDigests> of_others = {});
std::filesystem::path run_save_alone(SaveJob& job);

}  // namespace lockstep::internal
