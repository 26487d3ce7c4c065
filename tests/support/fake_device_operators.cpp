#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_device.h"
#include "tests/support/fake_device_work.h"

namespace lockstep::testing {
namespace {

bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  if (alias == nullptr) return false;
  return alias->isWrite() || std::ranges::any_of(alias->containedTypes(), &c10::AliasInfo::isWrite);
}

// The tensors on the device in one argument or result.
std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_privateuseone()) found.push_back(tensor);
  };
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) add(each);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isTensor()) add(each.toTensor());
    }
  }
  return found;
}

// Whether the host must know what was computed, to know the result or its size.
bool is_waited_for(const c10::FunctionSchema& schema) {
  static const std::set<std::string> kOfUnknownSize{"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                                    "aten::unique_dim", "aten::unique_consecutive"};
  if (kOfUnknownSize.contains(schema.name())) return true;
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& each) {
    return each.type()->kind() != c10::TypeKind::TensorType && each.type()->kind() != c10::TypeKind::ListType;
  });
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  std::vector<at::Tensor> read, written;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const bool is_output = is_written(schema.arguments()[i]);
    for (const at::Tensor& each : tensors_in((*stack)[first + i])) (is_output ? written : read).push_back(each);
  }
  if (read.empty() && written.empty()) return at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  const at::Device device = (written.empty() ? read : written).front().device();
  StreamOrder::Work work = current_work(device, schema.name());
  for (const at::Tensor& each : read) reads(work, each);
  {
    const WithinOperator within;
    const c10::DeviceGuard guard(device);
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }
  for (const at::Tensor& each : written) writes(work, each);
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    for (const at::Tensor& each : tensors_in((*stack)[i])) writes(work, each);
  }
  if (is_waited_for(schema)) wait_for_current_stream(device);
  check_races();
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

// Memory of the host from which the device can copy without it.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    const std::lock_guard lock(mutex);
    pinned.insert(memory);
    return {memory, memory, &give_back, at::Device(at::kCPU)};
  }
  static void give_back(void* memory) {
    const std::lock_guard lock(mutex);
    pinned.erase(memory);
    std::free(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  static inline std::mutex mutex;
  static inline std::set<const void*> pinned;  // protected by mutex
};

// What autograd asks the accelerator of a graph, and who makes tensors in pinned memory.
struct FakeHooks final : at::PrivateUse1HooksInterface {
  at::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedAllocator pinned;
    return &pinned;
  }
  bool isPinnedPtr(const void* memory) const override {
    const std::lock_guard lock(PinnedAllocator::mutex);
    return PinnedAllocator::pinned.contains(memory);
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return c10::impl::getDeviceGuardImpl(at::kPrivateUse1)->getDevice().index();
  }
};

}  // namespace

void use_fake_device() {
  static const bool once = [] {
    register_fake_device();
    static FakeHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("fake");  // an accelerator: autograd asks which there is for its streams
    static torch::Library fallback(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    static torch::Library operators(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
    operators.impl("resize_", &resize_fake);
    operators.impl("_copy_from_and_resize", &copy_from_and_resize);
    operators.impl("_reshape_alias", &at::native::_reshape_alias);
    operators.impl("unfold", &at::native::unfold);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace lockstep::testing
