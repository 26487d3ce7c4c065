// Whether ranks have equal values of the replicated state, so that a set may have pieces of several ranks. Each rank
// has a digest of every piece: from writing it, or, if another rank writes it, from reading its own values.
//   pieces -> digest of each -> one digest of a rank -> nothing, or an error on all ranks that names the first tensor
#pragma once

#include <future>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save_plan.h"

namespace lockstep::internal {

// By piece_name(): XXH3-128 of this rank's values.
using ReplicaDigests = std::map<std::string, std::string>;

// Digests of the pieces that others write, and of its own if the set has another kind of digest. Reads each byte once,
// in bounded memory. threads: at most this many, and only the caller's if a tensor is on a device, since another thread
// has other streams. Error{invalid_argument} for a tensor that was changed since plan_save(), as of PartCopies.
ReplicaDigests replica_digests(const SaveJob& job, int threads);
// Of the same, for a while in which nobody changes them: as soon as get() is called at the latest.
std::future<ReplicaDigests> replica_digests_beside(const SaveJob& job);

// Of all of them together; of one length.
std::string joint_digest(const ReplicaDigests& digests);

// joint: that of each rank. Error{desync} on all ranks: they differ; only then it communicates, and is collective.
void require_same_replicas(const ProcessGroup& group, const std::vector<std::string>& joint,
                           const ReplicaDigests& mine);

}  // namespace lockstep::internal
