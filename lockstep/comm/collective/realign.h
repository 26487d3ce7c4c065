// What ranks do over their links once they are known to be in different collectives. Exchange -> realign -> Links,
// Mesh. Both block, until their deadline at most.
#pragma once

#include <optional>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/collective/links.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

enum class Reading { no, yes };
// After a failure: sends this rank's signature to all peers that can still be reached and, if reading, reads theirs.
// Returns the desync that it finds.
std::optional<Error> settle_signatures(Links& links, Mesh& mesh, Deadline deadline, Reading reading);

struct Realigned {
  Error error;      // says what all ranks came with
  bool is_aligned;  // whether the ranks' next calls find the links as if nothing had been
};
// After a desync: reads the calls of all ranks, and brings the links to where the next collective can begin; see
// farewell.h. Throws if some rank does not answer.
Realigned realign(Links& links, Mesh& mesh, Route route, Deadline deadline);

}  // namespace lockstep::internal
