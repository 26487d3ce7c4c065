// A barrier by messages that names missing ranks: every rank reports to rank 0, which informs all. Slower than a
// group's barrier, it leaves the group as it is: messages and collectives work afterwards, whatever its outcome. As
// torch.distributed.monitored_barrier: blocks until rank 0 has heard from all ranks, or the timeout.
#pragma once

#include <cstdint>

#include "lockstep/comm/messages/messenger.h"

namespace lockstep::internal {

// Called by all ranks. `number` counts the calls of the group, equal on all ranks. Throws on every rank that called it
// Error{timeout} naming a rank that did not arrive in time and its state: the first or, with wait_all_ranks, all of
// them; and Error{peer_lost} naming one that died: at once or, with wait_all_ranks, at the timeout. A rank that arrives
// late gets the same. If rank 0 does not arrive, the others name it.
void monitored_barrier(Messenger& messenger, std::uint64_t number, Duration timeout, bool wait_all_ranks);

}  // namespace lockstep::internal
