// Streams of devices, of any kind that torch knows. For the CPU, which has none, nothing is done.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::internal {

// How far the streams of some devices were at some time. A copyable handle of events; one thread at a time.
class StreamMarks {
 public:
  // The current stream of the device, now. Replaces an earlier mark of the device.
  void add(at::Device device);
  void clear() { marks_.clear(); }
  std::vector<at::Device> devices() const;
  // Blocks until what was queued before the marks is done.
  void wait_on_host() const;
  // What is queued from now on, on the devices' current streams, waits for that; the host does not.
  void wait_on_streams() const;
  // Whether what was queued before the marks is done. Never blocks.
  bool are_reached() const;
  // The same for each thread that calls it; null if there are no marks.
  std::function<void()> waiter() const;

 private:
  std::vector<std::pair<at::Device, std::shared_ptr<c10::Event>>> marks_;
};

// The device, other than the CPU, that all tensors of two lists are on; nothing if there is none.
std::optional<at::Device> device_of(at::TensorList first, at::TensorList second);

// The current stream uses the tensor's memory, which may have been allocated for another one: the allocator gives it to
// nobody before that work is over. To be called before the memory may be given back.
void note_use(const at::Tensor& tensor);
void note_use(const c10::Storage& storage);
// Until its end, the calling thread queues work for some devices on separate streams, not behind what its current
// streams have queued.
class OnOwnStreams {
 public:
  explicit OnOwnStreams(const std::vector<at::Device>& devices);
  ~OnOwnStreams();
  OnOwnStreams(const OnOwnStreams&) = delete;
  OnOwnStreams& operator=(const OnOwnStreams&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

// Whether memory of the host can be pinned for the device: then copies go on without the host.
bool can_pin_for(at::Device device);

}  // namespace lockstep::internal
