#include "lockstep/comm/messages/matcher.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal {

OperationPtr Matcher::take_receive(int peer, std::uint64_t tag) {
  const auto queues = tags_.find(tag);
  if (queues == tags_.end()) return nullptr;
  auto& receives = queues->second.receives;
  const auto found = std::ranges::find_if(receives, [&](const OperationPtr& each) {
    return each->envelope.peer == peer || each->envelope.peer == kAnySource;
  });
  if (found == receives.end()) return nullptr;
  OperationPtr receive = std::move(*found);
  receives.erase(found);
  tidy(queues);
  return receive;
}

std::optional<Arrived> Matcher::take_arrived(const Envelope& receive) {
  const auto queues = tags_.find(receive.tag);
  if (queues == tags_.end()) return std::nullopt;
  auto& arrived = queues->second.arrived;
  const auto found = std::ranges::find_if(
      arrived, [&](const Arrived& each) { return receive.peer == each.peer || receive.peer == kAnySource; });
  if (found == arrived.end()) return std::nullopt;
  std::optional<Arrived> message(std::move(*found));
  arrived.erase(found);
  tidy(queues);
  return message;
}

void Matcher::add(OperationPtr receive) {
  auto& receives = tags_[receive->envelope.tag].receives;
  auto behind = receives.end();
  while (behind != receives.begin() && (*std::prev(behind))->number > receive->number) --behind;
  receives.insert(behind, std::move(receive));
}

void Matcher::add(Arrived arrived) {
  auto& queue = tags_[arrived.tag].arrived;
  queue.push_back(std::move(arrived));
}

bool Matcher::remove(const Operation& receive) {
  const auto queues = tags_.find(receive.envelope.tag);
  if (queues == tags_.end()) return false;
  const auto removed =
      queues->second.receives.remove_if([&](const OperationPtr& each) { return each.get() == &receive; });
  tidy(queues);
  return removed != 0;
}

bool Matcher::remove_at_sender(int peer, std::uint64_t tag, std::uint64_t id) {
  return remove_arrived(tag, [&](const Arrived& each) {
    return each.where == Arrived::Where::at_sender && each.peer == peer && each.id == id;
  });
}

bool Matcher::remove_local(const Operation& send) {
  return remove_arrived(send.envelope.tag, [&](const Arrived& each) { return each.send.get() == &send; });
}

void Matcher::forget_at_sender(int peer) {
  for (auto queues = tags_.begin(); queues != tags_.end();) {
    queues->second.arrived.remove_if(
        [&](const Arrived& each) { return each.where == Arrived::Where::at_sender && each.peer == peer; });
    tidy(queues++);
  }
}

template <class Fits>
bool Matcher::remove_arrived(std::uint64_t tag, Fits&& fits) {
  const auto queues = tags_.find(tag);
  if (queues == tags_.end()) return false;
  const auto removed = queues->second.arrived.remove_if(fits);
  tidy(queues);
  return removed != 0;
}

void Matcher::tidy(Tags::iterator queues) {
  if (queues->second.receives.empty() && queues->second.arrived.empty()) tags_.erase(queues);
}

}  // namespace lockstep::internal
