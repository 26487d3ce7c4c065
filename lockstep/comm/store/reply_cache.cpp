#include "lockstep/comm/store/reply_cache.h"

#include <algorithm>

namespace lockstep::internal {
namespace {

// How long a request may travel before a server receives it.
constexpr Duration kLongestTransit = std::chrono::minutes(1);
constexpr Duration kLongestAge = std::chrono::hours(24 * 365);  // a peer's number must not overflow

}  // namespace

ReplyCache::Found ReplyCache::find(const StoreRequest& request, TimePoint now) {
  forget_clients(now);
  const auto found = clients_.find(request.client);
  if (found == clients_.end()) {
    const bool in_doubt = request.age > Duration::zero() && forgotten_seen_ != TimePoint::min() &&
                          now - forgotten_seen_ <= std::min(request.age, kLongestAge) + kLongestTransit;
    return {in_doubt ? State::forgotten : State::unseen, nullptr};
  }
  Client& client = found->second;
  client.ended = std::max(client.ended, request.ended);
  auto entry = client.replies.begin();
  while (entry != client.replies.end() && entry->first < client.ended) entry = drop(client, entry);
  if (request.id < client.ended) return {State::ended, nullptr};
  entry = client.replies.find(request.id);
  if (entry != client.replies.end()) return {State::replied, &entry->second.reply};
  return {request.id < client.forgotten ? State::forgotten : State::unseen, nullptr};
}

void ReplyCache::insert(const StoreRequest& request, const StoreReply& reply, TimePoint now) {
  Client& client = clients_[request.client];
  by_age_.erase({client.seen, request.client});
  client.seen = now;
  client.ended = std::max(client.ended, request.ended);
  by_age_.insert({now, request.client});
  client.replies[request.id] = {reply, next_order_};
  order_[next_order_++] = {request.client, request.id};
  bytes_ += reply.value.size();
  while (replies() > kMaxReplies || bytes_ > kMaxBytes) forget_oldest_reply();
}

void ReplyCache::forget_clients(TimePoint now) {
  while (!by_age_.empty()) {
    const auto [seen, id] = *by_age_.begin();
    if (clients_.size() <= kMaxClients && now - seen < kKeptFor) return;
    Client& client = clients_.at(id);
    for (auto entry = client.replies.begin(); entry != client.replies.end();) entry = drop(client, entry);
    forgotten_seen_ = std::max(forgotten_seen_, seen);
    clients_.erase(id);
    by_age_.erase(by_age_.begin());
  }
}

void ReplyCache::forget_oldest_reply() {
  const auto [client_id, request] = order_.begin()->second;
  Client& client = clients_.at(client_id);
  client.forgotten = std::max(client.forgotten, request + 1);
  drop(client, client.replies.find(request));
}

ReplyCache::Replies::iterator ReplyCache::drop(Client& client, Replies::iterator entry) {
  bytes_ -= entry->second.reply.value.size();
  order_.erase(entry->second.order);
  return client.replies.erase(entry);
}

}  // namespace lockstep::internal
