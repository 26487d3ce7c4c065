// A device for tests without a GPU: torch's PrivateUse1, with memory that the host can read but not make sense of. All
// bytes in it are scrambled; only copies between host and device unscramble them. So who reads it without such a copy
// gets nonsense.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::testing {

inline const at::Device kFakeDevice(at::kPrivateUse1, 0);

// Makes the device known to torch; once for each program.
void register_fake_device();
// How often somebody has waited for a stream of the device.
std::int64_t fake_device_synchronizations();

}  // namespace lockstep::testing
