// Communication hooks that send gradients as 8-bit integers. Every rank rounds its own gradients once and gets those of
// all others, so bytes grow with the number of ranks: useful for few ranks and slow networks. After torch.distributed's
// quantization_hooks. Results are float32. Stateless; a hook may serve several models and threads.
#pragma once

#include <cstdint>

#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

namespace lockstep {

// One scale and one zero point for a bucket: a value is off by at most half of (largest - smallest) / 255, where
// smallest and largest span zero. NaN and Inf make all of the bucket NaN.
// Error{invalid_argument} for complex gradients.
CommHook quantize_8bit_hook();

// The same for each run of channel_elements elements of a bucket.
// Error{invalid_argument} unless channel_elements is positive.
CommHook quantize_8bit_per_channel_hook(std::int64_t channel_elements = 512);

}  // namespace lockstep
