// All-reduce in Order::tree on a device, with a communicator that adds up in another order: the bits are those of the
// host's engines. Each rank gets a part of all ranks' values, reduces it in the tree, and all ranks gather the parts: a
// rank sends as much as in a ring. DeviceCalls -> here -> Communicator.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// Whether a library can do it, in any number of ranks that has a tree.
bool has_device_tree(const CommunicatorLibrary& library, OpKind kind, ReduceOp op, DType dtype, int ranks);

// Queues it on the stream, which is current, for `call.count` elements at call.output. Throws what the communicator and
// torch throw. REQUIRES: has_device_tree().
void all_reduce_in_tree(Communicator& communicator, const CarrierCall& call, int ranks, c10::Stream stream);

}  // namespace lockstep::internal
