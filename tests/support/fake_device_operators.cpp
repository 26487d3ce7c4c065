#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <utility>

#include "tests/support/fake_device.h"

namespace lockstep::testing {
namespace {

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

const at::Tensor& resize_fake(const at::Tensor& tensor, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  const c10::Storage& storage = tensor.storage();
  const std::size_t end = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  if (end <= storage.nbytes()) return tensor;
  const c10::DeviceGuard guard(tensor.device());
  c10::DataPtr grown = storage.allocator()->allocate(end);
  std::memcpy(grown.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(grown));
  storage.unsafeGetStorageImpl()->set_nbytes(end);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize_fake(to, from.sizes(), {});
  return to.copy_(from);
}

// What autograd asks the accelerator of a graph.
struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return c10::impl::getDeviceGuardImpl(at::kPrivateUse1)->getDevice().index();
  }
};

}  // namespace

void let_fake_device_compute() {
  using torch::Library;
  static FakeHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("fake");  // an accelerator: autograd asks which there is for its streams
  static Library fallback(Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static Library operators(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
  operators.impl("resize_", &resize_fake);
  operators.impl("_copy_from_and_resize", &copy_from_and_resize);
  operators.impl("_reshape_alias", &at::native::_reshape_alias);
  operators.impl("unfold", &at::native::unfold);
}

}  // namespace lockstep::testing
