// Steps that all ranks of a group take, and that may fail on any of them. A rank that leaves alone lets the others wait
// for a timeout; here its error becomes the error of all, the same kind and text on each.
// action -> what it gives, or an Error -> all ranks. Collective and blocking, but for error_in(); the errors of
// ProcessGroup's calls come on top.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// What an action throws, as an Error, whatever it is. A lack of memory and what the operating system refuses are
// internal; anything else comes from the program's own objects, and is invalid_argument. Nothing if it returns.
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
