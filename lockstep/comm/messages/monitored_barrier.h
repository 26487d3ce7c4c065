// A barrier by messages that says who did not come: every rank reports to rank 0, which tells all. Slower than a
// group's barrier, it leaves the group as it is: messages and collectives go on afterwards, whatever its outcome.
// As torch.distributed.monitored_barrier: blocks until rank 0 has heard of all ranks, or the timeout.
#pragma once

#include <cstdint>

#include "lockstep/comm/messages/messenger.h"

namespace lockstep::internal {

// Called by all ranks. `number` counts the calls of the group, on all ranks alike. Throws on every rank that called it
// Error{timeout} naming a rank that did not come in time and how it fares: the first or, with wait_all_ranks, all of
// them; and Error{peer_lost} naming one that died: at once or, with wait_all_ranks, at the timeout. A rank that comes
// late gets the same. Rank 0 itself is named by the others if it does not come.
void monitored_barrier(Messenger& messenger, std::uint64_t number, Duration timeout, bool wait_all_ranks);

}  // namespace lockstep::internal
