#include "tests/support/fake_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::testing {
namespace {

std::atomic<std::int64_t> synchronizations{0};
thread_local c10::DeviceIndex current_index = 0;

at::Device current_device() { return {at::kPrivateUse1, current_index}; }

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  FakeGuard() = default;
  explicit FakeGuard(c10::DeviceType) {}
  c10::DeviceType type() const override { return at::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {at::kPrivateUse1, std::exchange(current_index, device.index())};
  }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_index = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }
  void synchronizeStream(const c10::Stream&) const override { ++synchronizations; }
  // What is queued is done at once.
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    return {memory, memory, &std::free, current_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

FakeAllocator allocator;

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(current_device()));
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(current_device()));
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat));
}

// The whole storage of a tensor, readable; a host tensor's own is itself.
struct Readable {
  explicit Readable(const at::Tensor& tensor) : of(tensor), bytes(tensor.storage().nbytes()) { scramble(false); }

  void scramble(bool back) {
    auto* storage = static_cast<std::uint8_t*>(of.storage().mutable_data());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (back) storage[i] = bytes[i] ^ 0x5a;
      if (!back) bytes[i] = storage[i] ^ 0x5a;
    }
  }
  at::Tensor view() {
    auto* first = bytes.data() + of.storage_offset() * static_cast<std::int64_t>(of.element_size());
    return at::from_blob(first, of.sizes(), of.strides(), at::TensorOptions().dtype(of.scalar_type()));
  }

  at::Tensor of;
  std::vector<std::uint8_t> bytes;
};

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  std::optional<Readable> source, target;
  if (!from.is_cpu()) source.emplace(from);
  if (!to.is_cpu()) target.emplace(to);
  (target ? target->view() : to).copy_(source ? source->view() : from);
  if (target) target->scramble(true);
  return to;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
}

}  // namespace

void register_fake_device() { c10::SetAllocator(at::kPrivateUse1, &allocator); }
std::int64_t fake_device_synchronizations() { return synchronizations; }

}  // namespace lockstep::testing
