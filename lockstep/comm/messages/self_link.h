// The SelfLink is the messages of a rank to itself. ProgressEngine -> SelfLink. One thread at a time; never blocks.
#pragma once

#include <cstddef>

#include "lockstep/comm/messages/link_observer.h"
#include "lockstep/comm/messages/matcher.h"
#include "lockstep/comm/messages/operation.h"

namespace lockstep::internal {

class SelfLink {
 public:
  SelfLink(int rank, Matcher& matcher, LinkObserver& observer) : rank_(rank), matcher_(matcher), observer_(observer) {}

  void post_send(const OperationPtr& send);
  // A receive was matched with a message of this rank that was in the matcher.
  void accept(const OperationPtr& receive, const Arrived& arrived);

 private:
  void hand_over(const OperationPtr& receive, const OperationPtr& send);

  const int rank_;
  Matcher& matcher_;
  LinkObserver& observer_;
  std::size_t unexpected_bytes_ = 0;  // of messages that were copied, without a receive
};

}  // namespace lockstep::internal
