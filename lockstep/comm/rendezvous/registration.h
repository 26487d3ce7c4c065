// Registration: every rank says in the store who it is and learns who the others are. store -> registration -> members.
// Blocks until all are there.
//
// A world that is complete, or has failed, is over: processes that come later, in place of those that have ended,
// register in the next part of the store.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/health/join_watch.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

struct RegistrationOptions {
  JoinWatch* watch = nullptr;            // sees ranks die meanwhile; null: only what ranks write into the store counts
  Duration notice_after = kFirstReport;  // when the log first says who is missing
  Duration host_timeout = kHostTimeout;
};

// Takes me.rank in a world of `size` and returns all members by rank. Nothing if the world is over, because this very
// process has held the rank in it before, or another one that has ended: then the next world needs a part of the store
// that is still unused.
//
// Errors:
//
//   invalid_argument  another process holds the rank (it is named, and not disturbed), or a rank was started with
//                     another world size or host timeout (every rank that waits or comes later gets it)
//   peer_lost         a rank has died meanwhile; all that wait get it
//   timeout           names the ranks that did not join; ranks that join later get Error{aborted}
std::optional<std::vector<Member>> register_rank(Store& store, const Member& me, int size, Deadline deadline,
                                                 const RegistrationOptions& how = {});

// Blocks until all ranks have returned from register_rank(), for the rank whose process hosts the store.
void wait_for_all_registered(Store& store, const Member& me, int size, Deadline deadline,
                             const RegistrationOptions& how = {});

// Removes what this rank's registration has left in the store, except one key that says who the members were; rank 0
// removes what all have left. REQUIRES: register_rank() has returned, on the host of the store the wait as well.
void clear_registration(Store& store, int rank, int size, Deadline deadline);

}  // namespace lockstep::internal
