// Settings that must be equal on all ranks of a save or load, compared before any work. State, options -> facts of each
// rank -> nothing, or an error on all ranks. Metrics are not compared: rank 0's are used.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save_options.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep::internal {

// By name, in the order in which they are compared: {"step", "3"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts_of(const SaveOptions& options);
Facts facts_of_save(const std::filesystem::path& directory, const State& state, const SaveOptions& options);
// call: "load" or "load_if_any".
Facts facts_of_load(const std::filesystem::path& directory, const State& state, const LoadOptions& options,
                    std::string_view call);

// Collective. Error{invalid_argument} on all ranks, for the first fact that differs: "rank 0 saves step 3, rank 2 step
// 4". verb: "saves".
void require_same_facts(const ProcessGroup& group, std::string_view verb, const Facts& mine);

}  // namespace lockstep::internal
