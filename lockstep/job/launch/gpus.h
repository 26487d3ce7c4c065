// How many GPUs of NVIDIA's this process may use, without its libraries: the launcher does not link them. Thread-safe;
// never fails.
#pragma once

#include <string>

namespace lockstep::internal {

// The driver has a file nvidia<n> in `devices` for each.
int present_gpus(const std::string& devices = "/dev");

// How many of `present` are seen, with this value of CUDA_VISIBLE_DEVICES (null: not set), as
// torch.cuda.device_count() has it: numbers count up to the first that there is not; "" and "-1" mean none; a number
// twice means none. Names (GPU-...) are not looked up. Of MIG's parts a process sees one.
int visible_gpus(int present, const char* visible_devices);

}  // namespace lockstep::internal
