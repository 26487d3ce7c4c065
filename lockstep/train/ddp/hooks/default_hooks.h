// Communication hooks without a memory: plain averaging, in fewer bits or not at all. After torch.distributed's
// default_hooks and debugging_hooks. A hook may serve several models and threads. What they throw: see CommHook.
#pragma once

#include "lockstep/train/ddp/hooks/comm_hook.h"

namespace lockstep {

// The mean over ranks: the bits that gradients have without a hook.
CommHook all_reduce_hook();

// The gradients are rounded to float16 or bfloat16, `inner` works on these, and its result becomes what the gradients
// were: half the bytes for float32. Any hook may be inside, another one of these as well.
// Error{invalid_argument}: no inner hook, complex gradients, or an inner result of another size.
CommHook fp16_compress_hook(CommHook inner = all_reduce_hook());
CommHook bf16_compress_hook(CommHook inner = all_reduce_hook());

// Communicates nothing: every rank keeps its own gradients, with Weighting::samples times its part of the weights. To
// measure what communication costs.
CommHook noop_hook();

}  // namespace lockstep
