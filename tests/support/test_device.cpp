#include "tests/support/test_device.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "tests/support/fake_communicator.h"
#include "tests/support/fake_device.h"

namespace lockstep::testing {

at::Device test_device() {
  static const bool is_fake = [] {
    const char* name = std::getenv("LOCKSTEP_TEST_DEVICE");  // NOLINT(concurrency-mt-unsafe): nothing changes it
    if (name == nullptr || !std::string_view(name).starts_with("fake")) return false;
    use_fake_device();
    if (std::string_view(name) == "fake_communicators") static const WithFakeCommunicators with;
    return true;
  }();
  static std::atomic<int> threads{0};
  thread_local const int index = threads++ % kFakeDevices;
  return is_fake ? at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)) : at::Device(at::kCPU);
}

void move_to(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device) return;
  tensor.unsafeGetTensorImpl()->shallow_copy_from(tensor.detach().to(device).getIntrusivePtr());
}

}  // namespace lockstep::testing
