// load(), for a caller that also has something to say about a set's step and metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save.h"

namespace lockstep::internal {

using AcceptMetadata = std::function<void(const std::map<std::string, std::string>& metadata)>;

// accept: called on every rank before anything changes. What it throws is the error on all ranks, but for
// Error{corrupt_data}, after which an older set is tried. With least_step, only sets of this step or a later one are
// tried, and the result is empty if none of them is undamaged; nothing has changed then.
std::optional<Loaded> load_accepted(const std::filesystem::path& directory, const State& state,
                                    const ProcessGroup& group, const AcceptMetadata& accept,
                                    std::optional<std::uint64_t> least_step = {});

}  // namespace lockstep::internal
