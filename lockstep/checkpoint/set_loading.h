// The tensors of a set, to those ranks that want them. set -> ranks of each node read a share each -> broadcast within
// the node -> Checkpoint of each rank. Collective over the ranks of a job that load together.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/set_reader.h"
#include "lockstep/group/process_group.h"

namespace lockstep::internal {

// Who reads for whom.
struct Readers {
  std::optional<ProcessGroup> node = {};  // the ranks of this node; none: this process is alone
  int rank() const { return node ? node->rank() : 0; }
  int size() const { return node ? node->size() : 1; }
};
Readers readers_of(const ProcessGroup& group);

// Error{corrupt_data} on those ranks that have read damage; what others return is then to be thrown away.
using Wanted = std::function<bool(std::string_view name)>;
Checkpoint read_set(SetReader& set, const Readers& readers, const Wanted& wanted);

}  // namespace lockstep::internal
