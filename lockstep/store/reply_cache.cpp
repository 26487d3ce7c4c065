#include "lockstep/store/reply_cache.h"

#include <algorithm>

namespace lockstep {
namespace {

// How long a request may be under way before a server takes it in.
constexpr Duration kUnderWay = std::chrono::minutes(1);
constexpr Duration kLongestAge = std::chrono::hours(24 * 365);  // a peer's word must not overflow

}  // namespace

ReplyCache::Recalled ReplyCache::recall(const StoreRequest& request, TimePoint now) {
  forget_clients(now);
  const auto found = clients_.find(request.client);
  if (found == clients_.end()) {
    const bool in_doubt = request.age > Duration::zero() && forgotten_seen_ != TimePoint::min() &&
                          now - forgotten_seen_ <= std::min(request.age, kLongestAge) + kUnderWay;
    return {in_doubt ? Past::forgotten : Past::none, nullptr};
  }
  Client& client = found->second;
  client.ended = std::max(client.ended, request.ended);
  auto answer = client.answers.begin();
  while (answer != client.answers.end() && answer->first < client.ended) answer = drop(client, answer);
  if (request.id < client.ended) return {Past::ended, nullptr};
  answer = client.answers.find(request.id);
  if (answer != client.answers.end()) return {Past::answered, &answer->second.reply};
  return {request.id < client.forgotten ? Past::forgotten : Past::none, nullptr};
}

void ReplyCache::remember(const StoreRequest& request, const StoreReply& answer, TimePoint now) {
  Client& client = clients_[request.client];
  by_age_.erase({client.seen, request.client});
  client.seen = now;
  client.ended = std::max(client.ended, request.ended);
  by_age_.insert({now, request.client});
  client.answers[request.id] = {answer, next_order_};
  order_[next_order_++] = {request.client, request.id};
  bytes_ += answer.value.size();
  while (answers() > kMaxAnswers || bytes_ > kMaxBytes) forget_oldest_answer();
}

void ReplyCache::forget_clients(TimePoint now) {
  while (!by_age_.empty()) {
    const auto [seen, id] = *by_age_.begin();
    if (clients_.size() <= kMaxClients && now - seen < kKeptFor) return;
    Client& client = clients_.at(id);
    for (auto answer = client.answers.begin(); answer != client.answers.end();) answer = drop(client, answer);
    forgotten_seen_ = std::max(forgotten_seen_, seen);
    clients_.erase(id);
    by_age_.erase(by_age_.begin());
  }
}

void ReplyCache::forget_oldest_answer() {
  const auto [client_id, request] = order_.begin()->second;
  Client& client = clients_.at(client_id);
  client.forgotten = std::max(client.forgotten, request + 1);
  drop(client, client.answers.find(request));
}

ReplyCache::Answers::iterator ReplyCache::drop(Client& client, Answers::iterator answer) {
  bytes_ -= answer->second.reply.value.size();
  order_.erase(answer->second.order);
  return client.answers.erase(answer);
}

}  // namespace lockstep
