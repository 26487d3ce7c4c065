// Steps that all ranks of a group take, and that may fail on any of them. If one rank left alone, the others would wait
// for a timeout; here its error is thrown on all ranks, with the same kind and text.
// action -> its result, or an Error -> all ranks. Collective and blocking, except error_in(); the errors of
// ProcessGroup's calls are possible too.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// Any exception of an action, as an Error. Lack of memory and failures of the operating system are internal; others
// come from the program's own objects, and are invalid_argument. Empty if the action returns.
std::optional<Error> error_in(const std::function<void()>& action);

// Throws on all ranks if any has failed: "rank 2: <text>", of the first that has. Without the rank if all say the same.
void fail_together(const ProcessGroup& group, const std::optional<Error>& mine, std::string_view what);
// Runs it on every rank.
void act_together(const ProcessGroup& group, std::string_view what, const std::function<void()>& action);
// What it gives on every rank, in rank order.
std::vector<std::string> gather_together(const ProcessGroup& group, std::string_view what,
                                         const std::function<std::string()>& action);
// What it gives on rank 0, which alone runs it.
std::string from_rank_0(const ProcessGroup& group, std::string_view what, const std::function<std::string()>& action);

}  // namespace lockstep::internal
