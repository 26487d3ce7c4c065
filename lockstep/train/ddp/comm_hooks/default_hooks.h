// Stateless communication hooks: averaging, in full or in fewer bits, and none. After torch.distributed's default_hooks
// and debugging_hooks. A hook may serve several models and threads. Errors: see CommHook.
#pragma once

#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

namespace lockstep {

// The mean over ranks, with the same bits as without a hook.
CommHook all_reduce_hook();

// The gradients are rounded to float16 or bfloat16, `inner` reduces these, and its result is converted back: half the
// bytes for float32. Any hook may be `inner`, another one of these as well.
// Error{invalid_argument}: no inner hook, complex gradients, or an inner result of another size.
CommHook fp16_compress_hook(CommHook inner = all_reduce_hook());
CommHook bf16_compress_hook(CommHook inner = all_reduce_hook());

// Communicates nothing: every rank keeps its own gradients, with Weighting::samples times its part of the weights. To
// measure the cost of communication.
CommHook noop_hook();

}  // namespace lockstep
