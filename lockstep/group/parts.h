// Groups of some of another group's ranks: how all ranks agree on them, and how the members connect.
// ProcessGroup::split -> parts -> connect.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/group/connect.h"
#include "lockstep/group/process_group.h"
#include "lockstep/health/peer_watch.h"

namespace lockstep {

// "new_group of 0 2". Error{invalid_argument}: not all of them are ranks of a group of `size`, each named once.
std::string name_of_part(const std::vector<int>& ranks, int size);
// Called by all ranks of a group before they agree on its `number`-th split: lets those that connect the parts learn
// when one dies or gives up. Null if all share memory or connections, which tell them anyway. Its owner ends it. An
// error here ends the group, since the others would wait.
std::shared_ptr<PeerWatch> watch_parts(const GroupOrigin& origin, const ProcessGroup& group,
                                       const GroupOptions& options, int number, Deadline deadline);
// Ends the watch, if there is one, of a rank that leaves with `error`. Returns what to throw: the cause, as all name
// it.
Error abandon_parts(const GroupOrigin& origin, PeerWatch* watch, const Error& error);
// The ranks of one color, ordered by key. colors_and_keys: both numbers of every rank, one rank after the other.
std::vector<int> ranks_of_part(std::span<const std::int64_t> colors_and_keys, std::int64_t color);
// Connects the `ranks` of a group, of which `rank` is one, as a group of their own. Only they call it. Ends the watch.
ProcessGroup connect_part(const GroupOrigin& origin, int rank, const std::vector<int>& ranks, const std::string& name,
                          const GroupOptions& options, const std::shared_ptr<PeerWatch>& watch, Deadline deadline);

}  // namespace lockstep
