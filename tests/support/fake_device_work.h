// What the parts of the fake device share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/support/late_work.h"
#include "tests/support/stream_order.h"

namespace lockstep::testing {

// The bytes between a tensor's first element and its last.
std::pair<const void*, std::size_t> fake_memory_of(const at::Tensor& tensor);
void reads(StreamOrder::Work& work, const at::Tensor& tensor);
void writes(StreamOrder::Work& work, const at::Tensor& tensor);
// On the current stream of a device.
StreamOrder::Work current_work(at::Device device, std::string name);
// Work that is queued on a stream, and done later by somebody who first waits for what is before it, and then opens
// its gate.
struct QueuedWork {
  QueuedWork(c10::Stream stream, std::string name);

  StreamOrder::Work order;
  LateWork::Gates before;
  std::shared_ptr<LateWork::Gate> over = std::make_shared<LateWork::Gate>();
};
// Fails the test case if work was not ordered.
void check_races();
// The host waits for a device's current stream.
void wait_for_current_stream(at::Device device);

// While one lives, this thread's copies are steps of an operator, which is itself ordered.
class WithinOperator {
 public:
  WithinOperator() { ++depth; }
  ~WithinOperator() { --depth; }
  WithinOperator(const WithinOperator&) = delete;
  WithinOperator& operator=(const WithinOperator&) = delete;

  static bool is_here() { return depth != 0; }

 private:
  static thread_local int depth;
};

}  // namespace lockstep::testing
