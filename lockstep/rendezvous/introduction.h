// The introduction: every rank says who it is and learns who the others are. store -> introduction -> members.
// Blocks until all are there.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Claims me.rank of a world of `size` and returns all members by rank; nothing if this very process has held the rank
// in this store before, in a world that has ended: then the next world needs a part of the store that is still unused.
// Error{invalid_argument}: another process holds the rank (it is named, and not disturbed), or somebody claims another
// world size (every rank that waits or comes later gets it). Error{timeout} names the ranks that did not come, and
// ranks that come after that get Error{aborted}.
std::optional<std::vector<Member>> introduce(Store& store, const Member& me, int size, Deadline deadline);

// Blocks until all ranks have returned from introduce(), for the one whose process hosts the store.
void wait_for_all_introduced(Store& store, const Member& me, int size, Deadline deadline);

}  // namespace lockstep
