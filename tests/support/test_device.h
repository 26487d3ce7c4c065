// On which device a suite's models and inputs lie: on the CPU, or on the fake device if LOCKSTEP_TEST_DEVICE is "fake",
// and there over communicators if it is "fake_communicators".
#pragma once

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

namespace lockstep::testing {

// Of the calling thread. Threads that are ranks of one group have devices of their own.
at::Device test_device();

// A case that is about the host's memory, and is left out of runs with a device.
inline auto on_host() { return doctest::test_suite("host"); }

// Moves a tensor in place, whoever holds it: torch's set_data() does not move between these devices.
void move_to(const at::Tensor& tensor, at::Device device);

}  // namespace lockstep::testing
