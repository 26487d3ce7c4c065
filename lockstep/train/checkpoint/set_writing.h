// Carries out what save_plan.h has planned: SaveJob -> files of all ranks -> a published set. Blocks for disk I/O.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/replicas.h"
#include "lockstep/train/checkpoint/save_plan.h"

namespace lockstep::internal {

// Collective. Returns the set's path; errors are the same on all ranks. Error{internal}: a disk is full or failing;
// earlier sets are kept. Error{desync}: replicated values differ between ranks; nothing is published.
// failure: why this rank has nothing to write; then it is the error on all ranks. of_others: the digests of
// job.of_others, where these may have changed since; nothing: they are read while the files are written.
// Rank 0 applies the retention once all ranks know that the set is there, so no rank waits for it in a collective; it
// takes at most a quarter of the group's timeout, and the next save removes the rest.
std::filesystem::path run_save(SaveJob& job, const ProcessGroup& group, const std::optional<Error>& failure = {},
                               std::optional<ReplicaDigests> of_others = {});
std::filesystem::path run_save_alone(SaveJob& job);

}  // namespace lockstep::internal
