#include "lockstep/comm/group/device_streams.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <optional>

namespace lockstep::internal {
namespace {

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

void StreamMarks::add(at::Device device) {
  if (device.is_cpu()) return;
  const auto event = std::make_shared<c10::Event>(device.type());
  event->record(current_stream(device));
  const auto found = std::ranges::find(marks_, device, &std::pair<at::Device, std::shared_ptr<c10::Event>>::first);
  if (found != marks_.end()) {
    found->second = event;
  } else {
    marks_.emplace_back(device, event);
  }
}

std::vector<at::Device> StreamMarks::devices() const {
  std::vector<at::Device> devices;
  for (const auto& [device, event] : marks_) devices.push_back(device);
  return devices;
}

void StreamMarks::wait_on_host() const {
  for (const auto& [device, event] : marks_) event->synchronize();
}

void StreamMarks::wait_on_streams() const {
  for (const auto& [device, event] : marks_) event->block(current_stream(device));
}

bool StreamMarks::are_reached() const {
  return std::ranges::all_of(marks_, [](const auto& mark) { return mark.second->query(); });
}

std::function<void()> StreamMarks::waiter() const {
  if (marks_.empty()) return nullptr;
  return [marks = *this] { marks.wait_on_streams(); };
}

std::optional<at::Device> device_of(at::TensorList first, at::TensorList second) {
  std::optional<at::Device> device;
  for (const at::TensorList list : {first, second}) {
    for (const at::Tensor& tensor : list) {
      if (!tensor.defined() || tensor.is_cpu() || (device && tensor.device() != *device)) return std::nullopt;
      device = tensor.device();
    }
  }
  return device;
}

void note_use(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) note_use(tensor.storage());
}

void note_use(const c10::Storage& storage) {
  if (!storage || storage.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(storage.device().type());
  device.recordDataPtrOnStream(storage.data_ptr(), device.getStream(storage.device()));
}

OnOwnStreams::OnOwnStreams(const std::vector<at::Device>& devices) {
  thread_local std::vector<c10::Stream> own;
  for (const at::Device device : devices) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    auto found = std::ranges::find(own, device, &c10::Stream::device);
    if (found == own.end()) found = own.insert(found, guard.getStreamFromGlobalPool(device));
    before_.push_back(guard.exchangeStream(*found));
  }
}

OnOwnStreams::~OnOwnStreams() {
  for (const c10::Stream stream : before_) c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
}

bool can_pin_for(at::Device device) {
  static const std::optional<c10::DeviceType> kType = [] {
    std::optional<c10::DeviceType> type = at::getAccelerator();
    try {
      if (type) at::globalContext().getPinnedMemoryAllocator(*type);
    } catch (const std::exception&) {  // torch's backend for it cannot
      type.reset();
    }
    return type;
  }();
  return kType == device.type();
}

}  // namespace lockstep::internal
