// load(), for a caller that also has something to say about a set's metadata.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save.h"

namespace lockstep::internal {

using AcceptMetadata = std::function<void(const std::map<std::string, std::string>& metadata)>;

// accept: called on every rank before anything changes. What it throws is the error on all ranks, but for
// Error{corrupt_data}, after which an older set is tried.
Loaded load_accepted(const std::filesystem::path& directory, const State& state, const ProcessGroup& group,
                     const AcceptMetadata& accept);

}  // namespace lockstep::internal
