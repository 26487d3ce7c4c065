// The introduction: every rank says who it is and learns who the others are. store -> introduction -> members.
// Blocks until all are there.
//
// A world that has met, or could not, is over: processes that come later, in place of those that have ended, meet in
// the next part of the store.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/health/peer_watch.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/store/store.h"

namespace lockstep {

// How an introduction learns of ranks that die meanwhile, and when it first says for whom it waits.
struct RegistrationOptions {
  PeerWatch* watch = nullptr;  // null: only of those that say so in the store
  Duration notice_after = kFirstReport;
};

// PeerIdentity me.rank of a world of `size` and returns all members by rank; nothing if the world is over, because this very
// process has held the rank in it before, or another one that has ended: then the next world needs a part of the store
// that is still unused. Error{invalid_argument}: another process holds the rank (it is named, and not disturbed), or
// somebody claims another world size (every rank that waits or comes later gets it). Error{peer_lost} names a rank that
// has died meanwhile, on all that wait. Error{timeout} names the ranks that did not come, and ranks that come after
// that get Error{aborted}.
std::optional<std::vector<Member>> register_rank(Store& store, const Member& me, int size, Deadline deadline,
                                             const RegistrationOptions& how = {});

// Blocks until all ranks have returned from register_rank(), for the one whose process hosts the store.
void wait_for_all_registered(Store& store, const Member& me, int size, Deadline deadline, const RegistrationOptions& how = {});

// Takes back what this rank's introduction has left in the store, but for one key that says who the members were; rank
// 0 what all have left. REQUIRES: register_rank() has returned, on the host of the store the wait as well.
void clear_registration(Store& store, int rank, int size, Deadline deadline);

}  // namespace lockstep
