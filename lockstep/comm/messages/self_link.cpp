#include "lockstep/comm/messages/self_link.h"

#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/messages/message_frame.h"

namespace lockstep::internal {

void SelfLink::post_send(const OperationPtr& send) {
  const Envelope& envelope = send->envelope;
  if (const OperationPtr receive = matcher_.take_receive(rank_, envelope.tag)) return hand_over(receive, send);
  Arrived arrived{Arrived::Where::local, rank_, envelope.tag, envelope.bytes, 0, {}, send};
  if (envelope.bytes > kEagerBytes || unexpected_bytes_ + eager_cost_bytes(envelope.bytes) > kUnexpectedBytes) {
    return matcher_.add(std::move(arrived));
  }
  unexpected_bytes_ += eager_cost_bytes(envelope.bytes);
  arrived.send = nullptr;
  arrived.data.resize(envelope.bytes);
  send->copy_out(arrived.data);
  matcher_.add(std::move(arrived));
  observer_.finish(send, nullptr);
}

void SelfLink::accept(const OperationPtr& receive, const Arrived& arrived) {
  if (arrived.send) return hand_over(receive, arrived.send);
  unexpected_bytes_ -= eager_cost_bytes(arrived.bytes);
  const auto copy = std::make_shared<Operation>();
  copy->envelope = {Direction::send, rank_, arrived.tag, arrived.bytes};
  copy->memory = {MutableByteSpan(const_cast<std::byte*>(arrived.data.data()), arrived.data.size())};
  hand_over(receive, copy);
}

void SelfLink::hand_over(const OperationPtr& receive, const OperationPtr& send) {
  receive->source = rank_;
  if (receive->envelope.bytes == send->envelope.bytes) {
    while (send->left_bytes() != 0) {
      const MutableByteSpan run = send->run();
      receive->copy_in(run);
      send->advance(run.size());
    }
    observer_.finish(receive, nullptr);
    return observer_.finish(send, nullptr);
  }
  const Error reason(ErrorKind::desync, fmt::format("this rank sent {} bytes with that tag to itself and expects {}",
                                                    send->envelope.bytes, receive->envelope.bytes));
  observer_.fail(receive, reason);
  observer_.fail(send, reason);
}

}  // namespace lockstep::internal
