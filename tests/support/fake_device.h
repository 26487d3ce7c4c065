// A device for tests without a GPU: torch's PrivateUse1, with memory that the host can read but not make sense of. All
// bytes in it are scrambled; only copies between host and device unscramble them. So code that reads it without such a
// copy gets nonsense.
//
// It has streams and events. What is queued is computed at once, but that is known only to streams and hosts that have
// waited for it: a StreamOrder watches over that. What is copied to the host without waiting arrives there when the
// host waits; until then the host finds nonsense. What is copied from the host without waiting may not change before
// that. Whoever breaks such a rule fails the test case, or is in CapturedRaces.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/stream_order.h"

namespace lockstep::testing {

// Autograd has a thread for each of them, which ranks that are threads of one process must not share.
inline constexpr c10::DeviceIndex kFakeDevices = 8;
inline constexpr int kFakeStreams = 16;  // of a device; the first is the default one
inline const at::Device kFakeDevice(at::kPrivateUse1, 0);

// Makes the device's memory known to torch: tensors can be copied there and back. Any number of times.
void register_fake_device();
// The same, and as an accelerator, for which autograd has threads: operators copy their operands from it to the host,
// compute there, and copy what comes out back; views stay on the device. Any number of times.
void use_fake_device();
// How often the host has waited for a stream or an event of the device: in all threads, in the calling one.
std::int64_t fake_device_synchronizations();
std::int64_t fake_device_waits_here();

c10::Stream fake_stream(at::Device device, int number);

// While one lives, races do not fail the test case.
class CapturedRaces {
 public:
  CapturedRaces();
  ~CapturedRaces();
  CapturedRaces(const CapturedRaces&) = delete;
  CapturedRaces& operator=(const CapturedRaces&) = delete;

  static std::vector<std::string> take();
};

}  // namespace lockstep::testing
