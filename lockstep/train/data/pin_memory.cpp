#include "lockstep/train/data/pin_memory.h"

#include <ATen/Context.h>

#include <atomic>

#include "lockstep/base/log.h"

namespace lockstep::internal {

bool has_device_to_pin_for() {
  const auto type = at::getAccelerator();
  if (type && at::globalContext().getAcceleratorHooksInterface(type).deviceCount() > 0) return true;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) log_warning("loader: pin_memory has no effect, since there is no GPU");
  return false;
}

}  // namespace lockstep::internal
