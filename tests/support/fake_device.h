// A device for tests without a GPU: torch's PrivateUse1, with memory that the host can read but not make sense of. All
// bytes in it are scrambled; only copies between host and device unscramble them. So code that reads it without such a
// copy gets nonsense.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::testing {

// Autograd has a thread for each of them, which ranks that are threads of one process must not share.
inline constexpr c10::DeviceIndex kFakeDevices = 8;
inline const at::Device kFakeDevice(at::kPrivateUse1, 0);

// Makes the device known to torch; once for each program.
void register_fake_device();
// From now on operators copy their operands from it to the host, compute there, and copy what comes out back; views
// stay on the device. Once for each program.
void let_fake_device_compute();
// How often somebody has waited for a stream of the device.
std::int64_t fake_device_synchronizations();

}  // namespace lockstep::testing
