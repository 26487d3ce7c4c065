// How all ranks get the same error when they are in different collectives. Exchange -> settle_desync -> Links, Mesh.
#pragma once

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collective/links.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// Announces this rank's call, and waits until all others have announced theirs: 1 s at most. For ranks that have not,
// which may be in no collective, it ends the mesh. Returns Error{desync} with the calls of all. REQUIRES: differ().
Error settle_desync(Links& links, Mesh& mesh, Deadline deadline);

}  // namespace lockstep::internal
