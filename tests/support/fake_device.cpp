#include "tests/support/fake_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <doctest/doctest.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/fake_device_work.h"

namespace lockstep::testing {
namespace {

std::atomic<std::int64_t> synchronizations{0};
std::atomic<int> captures{0};
thread_local std::int64_t waits_here = 0;
thread_local c10::DeviceIndex current_index = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

at::Device current_device() { return {at::kPrivateUse1, current_index}; }

StreamOrder& order() {
  static StreamOrder* const order = new StreamOrder;  // memory is freed until the very end
  return *order;
}

LateWork& late_work() {
  static LateWork* const late = new LateWork;
  return *late;
}

StreamOrder::Stream number_of(c10::Stream stream) {
  return static_cast<StreamOrder::Stream>(stream.device_index()) * kFakeStreams +
         static_cast<StreamOrder::Stream>(stream.id());
}

c10::Stream current_stream(at::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_index;
  return c10::Stream(c10::Stream::UNSAFE, {at::kPrivateUse1, index}, current_streams[static_cast<std::size_t>(index)]);
}

// Whether it is over is not known to the host before it asks a second time.
struct Event {
  StreamOrder::Clock clock;
  LateWork::Gates gates;
  int questions = 0;
};

Event event_of(StreamOrder::Stream stream) { return {order().record(stream), late_work().of(stream)}; }

void wait_for(const Event& event) {
  ++synchronizations;
  ++waits_here;
  await_all(event.gates);
  order().synchronize(event.clock);
}

void block(StreamOrder::Stream stream, const Event& event) {
  order().block(stream, event.clock);
  late_work().add(stream, event.gates);
}

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
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return fake_stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<int> next{0};
    return fake_stream(device, 1 + next++ % (kFakeStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams[static_cast<std::size_t>(stream.device_index())];
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), std::exchange(current, stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Event event = event_of(number_of(stream));
    return are_open(event.gates) && order().is_known(event.clock);
  }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(event_of(number_of(stream))); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    for (int i = 0; i < kFakeStreams; ++i) wait_for(event_of(number_of(fake_stream({type(), index}, i))));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = event_of(number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) testing::block(number_of(stream), *static_cast<const Event*>(event));
  }
  bool queryEvent(void* event) const override {
    auto* const asked = static_cast<Event*>(event);
    if (asked == nullptr) return true;
    if (!are_open(asked->gates)) return false;
    if (order().is_known(asked->clock)) return true;
    if (asked->questions++ == 0) return false;
    order().synchronize(asked->clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_for(*static_cast<const Event*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    order().use_on(data.get(), number_of(stream));
  }
};

// Memory is there until late work on its streams is over.
void free_memory(void* memory) {
  static auto* const mutex = new std::mutex;
  static auto* const freed = new std::vector<std::pair<void*, LateWork::Gates>>;  // protected by mutex
  LateWork::Gates gates;
  for (const StreamOrder::Stream stream : order().users_of(memory)) {
    for (auto& gate : late_work().of(stream)) gates.push_back(std::move(gate));
  }
  order().free(memory);
  check_races();
  const std::lock_guard lock(*mutex);
  freed->emplace_back(memory, std::move(gates));
  std::erase_if(*freed, [](const auto& each) {
    if (!are_open(each.second)) return false;
    std::free(each.first);
    return true;
  });
}

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = std::malloc(bytes == 0 ? 1 : bytes);
    order().allocate(memory, bytes, number_of(current_stream(current_device())));
    return {memory, memory, &free_memory, current_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
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

// A device's tensor, readable, with all that lies between its elements.
struct Readable {
  explicit Readable(const at::Tensor& tensor)
      : of(tensor), begin(static_cast<std::uint8_t*>(tensor.mutable_data_ptr())), bytes(fake_memory_of(tensor).second) {
    scramble(false);
  }

  void scramble(bool back) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (back) begin[i] = bytes[i] ^ 0x5a;
      if (!back) bytes[i] = begin[i] ^ 0x5a;
    }
  }
  at::Tensor view() {
    return at::from_blob(bytes.data(), of.sizes(), of.strides(), at::TensorOptions().dtype(of.scalar_type()));
  }

  at::Tensor of;
  std::uint8_t* begin;
  std::vector<std::uint8_t> bytes;
};

void move_bytes(const at::Tensor& from, const at::Tensor& to) {
  std::optional<Readable> source, target;
  if (!from.is_cpu()) source.emplace(from);
  if (!to.is_cpu()) target.emplace(to);
  (target ? target->view() : to).copy_(source ? source->view() : from);
  if (target) target->scramble(true);
}

// The host finds what is copied once it has waited.
void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool is_waited_for) {
  StreamOrder::Work work = current_work(from.device(), "copy to the host");
  reads(work, from);
  if (is_waited_for) {
    move_bytes(from, to);
    return wait_for_current_stream(from.device());
  }
  const at::Tensor copied = at::empty_like(to);
  move_bytes(from, copied);
  const auto [begin, bytes] = fake_memory_of(to);
  if (bytes != 0) std::memset(const_cast<void*>(begin), 0xff, bytes);
  work.when_known([copied, to] { to.copy_(copied); });
}

void copy_from_host(const at::Tensor& from, const at::Tensor& to, bool is_waited_for) {
  StreamOrder::Work work = current_work(to.device(), "copy from the host");
  writes(work, to);
  move_bytes(from, to);
  if (is_waited_for) return wait_for_current_stream(to.device());
  work.when_known([from, copied = from.clone()] {
    const auto [begin, bytes] = fake_memory_of(copied);
    if (bytes == 0 || std::memcmp(fake_memory_of(from).first, begin, bytes) == 0) return;
    ADD_FAIL_CHECK_AT(__FILE__, __LINE__, "the host changed memory that was being copied to the device");
  });
}

// Between devices the copy waits for both, and both for the copy.
void copy_on_devices(const at::Tensor& from, const at::Tensor& to) {
  const StreamOrder::Stream source = number_of(current_stream(from.device()));
  const StreamOrder::Stream target = number_of(current_stream(to.device()));
  block(source, event_of(target));
  {
    StreamOrder::Work work = current_work(from.device(), "copy");
    reads(work, from);
    writes(work, to);
  }
  move_bytes(from, to);
  block(target, event_of(source));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (WithinOperator::is_here()) {
    move_bytes(from, to);
  } else if (to.is_cpu()) {
    copy_to_host(from, to, !non_blocking);
  } else if (from.is_cpu()) {
    copy_from_host(from, to, !non_blocking);
  } else {
    copy_on_devices(from, to);
  }
  check_races();
  return to;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  order().use_on(tensor.storage().data(), number_of(stream));
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("record_stream", &record_stream);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
}

}  // namespace

void register_fake_device() { c10::SetAllocator(at::kPrivateUse1, &allocator); }
std::int64_t fake_device_synchronizations() { return synchronizations; }
std::int64_t fake_device_waits_here() { return waits_here; }

c10::Stream fake_stream(at::Device device, int number) { return c10::Stream(c10::Stream::UNSAFE, device, number); }

std::pair<const void*, std::size_t> fake_memory_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.has_storage()) return {nullptr, 0};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {tensor.const_data_ptr(), static_cast<std::size_t>(last + 1) * tensor.element_size()};
}

void reads(StreamOrder::Work& work, const at::Tensor& tensor) {
  const auto [begin, bytes] = fake_memory_of(tensor);
  work.reads(begin, bytes);
}

void writes(StreamOrder::Work& work, const at::Tensor& tensor) {
  const auto [begin, bytes] = fake_memory_of(tensor);
  work.writes(begin, bytes);
}

StreamOrder::Work current_work(at::Device device, std::string name) {
  const StreamOrder::Stream stream = number_of(current_stream(device));
  await_all(late_work().of(stream));
  return {order(), stream, std::move(name)};
}

QueuedWork::QueuedWork(c10::Stream stream, std::string name)
    : order(testing::order(), number_of(stream), std::move(name)), before(late_work().of(number_of(stream))) {
  late_work().add(number_of(stream), {over});
}

void wait_for_current_stream(at::Device device) { wait_for(event_of(number_of(current_stream(device)))); }

void check_races() {
  if (captures != 0) return;
  for (const std::string& race : order().take_races()) ADD_FAIL_CHECK_AT(__FILE__, __LINE__, race);
}

thread_local int WithinOperator::depth = 0;

CapturedRaces::CapturedRaces() { ++captures; }
CapturedRaces::~CapturedRaces() { --captures; }
std::vector<std::string> CapturedRaces::take() { return order().take_races(); }

}  // namespace lockstep::testing
