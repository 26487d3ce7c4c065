// At the end of a step ranks tell each other what their shards have left, so that all do the same with it.
// results of the ranks -> agreement -> the same tensors on all ranks -> average_over_ranks(). Collective; blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/ddp/lockstep_mode/shard_tree.h"
#include "lockstep/group/process_group.h"

namespace lockstep {

// Afterwards mine.loss is the mean over all ranks, and tensors that some rank has are defined on all of them. Returns
// the first hash, by its place, that was not the same after all shards. Error{desync} if ranks are at different steps.
std::optional<std::size_t> agree(ShardResult& mine, std::uint64_t step, const NeutralElement& neutral_element,
                                 const ProcessGroup& group);

}  // namespace lockstep
