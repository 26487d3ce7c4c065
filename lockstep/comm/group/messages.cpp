// Messages between two ranks, and the barrier that is made of them: GroupHandle -> Messenger.
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/group_state.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/comm/group/work_control.h"
#include "lockstep/comm/messages/monitored_barrier.h"

namespace lockstep {

using namespace internal;

namespace {

using Flow = TensorSegments::Flow;

std::uint64_t tag_of(int tag) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(tag)); }

FlightTicket record_message(const FlightLog& log, Direction direction, int peer, int tag,
                            const TensorSegments& tensor) {
  FlightRecord record;
  record.category = FlightCategory::message;
  record.set_operation(direction == Direction::send ? "send" : "receive");
  record.count = tensor.segments().front().bytes;
  record.dtype = DType::u8;
  record.peer = peer;
  record.tag = static_cast<std::uint32_t>(tag);
  return log.start(record);
}

StreamMarks copy_back_aside(const TensorSegments& tensor) {
  const OnOwnStreams on_own_streams(tensor.queued().devices());  // it may be the thread of a caller
  return tensor.copy_back();
}

// Posts a message. The Work ends with its transfer, and keeps the tensor until then.
template <class Post>
Work start_message(const FlightLog& log, Direction direction, int peer, int tag,
                   std::shared_ptr<const TensorSegments> tensor, Post post) {
  const FlightTicket ticket = record_message(log, direction, peer, tag, *tensor);
  try {
    const Work work = WorkControl::start();
    const Request transfer = post();
    transfer.on_done([work, transfer, tensor = std::move(tensor), direction, log, ticket](std::exception_ptr error) {
      StreamMarks done;
      try {
        if (direction == Direction::receive && !error) done = copy_back_aside(*tensor);
      } catch (...) {
        error = std::current_exception();
      }
      end_record(log, ticket, error);
      WorkControl::complete(work, std::move(error), transfer.source(), done.waiter());
    });
    return work;
  } catch (...) {  // refused before anything was sent
    end_record(log, ticket, std::current_exception());
    throw;
  }
}

}  // namespace

Work GroupHandle::send_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "send", TensorSegments::Use::move, Flow::read);
  segments->await();
  const Segment& whole = segments->segments().front();
  Messenger& messenger = state_->messenger();
  return start_message(state_->log, Direction::send, peer, tag, segments, [&] {
    return messenger.send(peer, tag_of(tag), ByteSpan(whole.data, whole.bytes), state_->deadline(options));
  });
}

Work GroupHandle::recv_async(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  auto segments = std::make_shared<const TensorSegments>(tensor, "recv", TensorSegments::Use::move, Flow::write);
  const Segment& whole = segments->segments().front();
  Messenger& messenger = state_->messenger();
  return start_message(state_->log, Direction::receive, peer, tag, segments, [&] {
    return messenger.receive(peer, tag_of(tag), MutableByteSpan(whole.data, whole.bytes), state_->deadline(options));
  });
}

void GroupHandle::send(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  send_async(tensor, peer, tag, options).wait();
}

int GroupHandle::recv(const at::Tensor& tensor, int peer, int tag, const CallOptions& options) const {
  const Work work = recv_async(tensor, peer, tag, options);
  work.wait();
  return work.source();
}

void GroupHandle::monitored_barrier(const CallOptions& options, bool wait_all_ranks) const {
  const std::uint64_t number = state_->monitored_barriers++;
  if (size() == 1) return;
  FlightRecord record;
  record.set_operation("monitored_barrier");
  FlightTicket ticket = state_->log.start(record);
  try {
    internal::monitored_barrier(state_->messenger(), number, options.timeout.value_or(timeout()), wait_all_ranks);
  } catch (const Error& error) {
    state_->log.fail(ticket, error);
    throw;
  }
  state_->log.finish(ticket);
}

}  // namespace lockstep
