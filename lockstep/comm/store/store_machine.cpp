#include "lockstep/comm/store/store_machine.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep::internal {
namespace {

StoreReply failed(const StoreRequest& request, ErrorKind kind, std::string text) {
  return {.id = request.id, .status = StoreStatus::error, .kind = kind, .value = std::move(text)};
}

StoreReply succeeded(const StoreRequest& request, Bytes value) {
  return {.id = request.id, .status = StoreStatus::ok, .value = std::move(value)};
}

}  // namespace

std::vector<AddressedReply> StoreMachine::handle(ConnectionId from, const StoreRequest& request, TimePoint now) {
  if (changes_state(request.op)) return change_once(from, request, now);
  try {
    for (const std::string& key : request.keys) check_store_key(key);
  } catch (const Error& error) {
    return {{from, failed(request, error.kind(), error.what())}};
  }
  if (request.op == StoreOp::last_will) return {{from, leave_will(from, request)}};
  if (request.op == StoreOp::check) {
    return {{from, succeeded(request, find_missing(request.keys, 0) ? "0" : "1")}};
  }
  Replies replies;
  start_waiting(from, request, now, replies);
  return replies;
}

std::vector<AddressedReply> StoreMachine::change_once(ConnectionId from, const StoreRequest& request, TimePoint now) {
  const ReplyCache::Found cached = replies_.find(request, now);
  switch (cached.state) {
    case ReplyCache::State::unseen: break;
    case ReplyCache::State::replied: return {{from, *cached.reply}};
    case ReplyCache::State::ended:
      return {{from, failed(request, ErrorKind::aborted, "its client no longer waits for this request")}};
    case ReplyCache::State::forgotten:
      return {{from, failed(request, ErrorKind::internal,
                            fmt::format("the connection was lost during store {} of {}, and the server has no record "
                                        "of its result; read the key to see whether it was done",
                                        to_string(request.op), list_keys(request.keys)))}};
  }
  Replies replies{{from, change(request)}};
  replies_.insert(request, replies.front().reply, now);
  wake(request.keys.front(), replies);
  return replies;
}

StoreReply StoreMachine::change(const StoreRequest& request) {
  const std::string& key = request.keys.front();
  try {
    check_store_key(key);
    switch (request.op) {
      case StoreOp::set: map_.set(key, request.value); return succeeded(request, "");
      case StoreOp::add: return succeeded(request, std::to_string(map_.add(key, request.delta)));
      case StoreOp::compare_set:
        return succeeded(request, map_.compare_set(key, request.expected, request.value).value);
      default: return succeeded(request, map_.remove(key) ? "1" : "0");
    }
  } catch (const Error& error) {
    return failed(request, error.kind(), error.what());
  }
}

bool StoreMachine::is_needed(ConnectionId connection) const {
  return by_connection_.contains(connection) ||
         std::ranges::any_of(wills_, [&](const auto& each) { return each.second.connection == connection; });
}

StoreReply StoreMachine::leave_will(ConnectionId from, const StoreRequest& request) {
  const WillId id{request.client, request.keys.front()};
  const auto before = wills_.find(id);
  const bool replaces = before != wills_.end();
  const auto count = std::ranges::count_if(wills_, [&](const auto& each) { return each.second.connection == from; });
  const bool has_room_of_it = replaces && before->second.connection == from;
  const bool is_full = static_cast<std::size_t>(count) >= kMaxWillsPerConnection + (has_room_of_it ? 1 : 0);
  if (request.value.size() > kMaxWillBytes || (is_full && !request.value.empty())) {
    return failed(request, ErrorKind::invalid_argument,
                  fmt::format("the limit for a connection is {} last wills of at most {} bytes", kMaxWillsPerConnection,
                              kMaxWillBytes));
  }
  const std::uint64_t number = replaces ? before->second.number : next_will_;
  if (replaces) forget_will(before);
  if (request.value.empty()) return succeeded(request, "");
  next_will_ = std::max(next_will_, number + 1);
  open_wills_.insert(number);
  wills_[id] = {.connection = from, .value = request.value, .number = number, .due = {}};
  return succeeded(request, "");
}

void StoreMachine::forget_will(std::map<WillId, Will>::iterator will) {
  if (will->second.due) by_delay_.erase({*will->second.due, will->first});
  open_wills_.erase(will->second.number);
  wills_.erase(will);
}

void StoreMachine::carry_out_wills(TimePoint now, Replies& replies) {
  while (!by_delay_.empty() && by_delay_.begin()->first <= now) {
    const auto will = wills_.find(by_delay_.begin()->second);
    const std::string key = will->first.second;
    try {
      map_.compare_set(key, "", will->second.value);
    } catch (const Error&) {  // the store is full
    }
    forget_will(will);
    wake(key, replies);
  }
}

void StoreMachine::start_waiting(ConnectionId from, const StoreRequest& request, TimePoint now, Replies& replies) {
  const std::optional<std::size_t> first_missing = find_missing(request.keys, 0);
  if (!first_missing) return replies.push_back({from, found(request)});
  if (request.timeout <= Duration::zero()) return replies.push_back({from, missing(request)});
  std::set<WaiterId>& own = by_connection_[from];
  if (own.size() == kMaxWaitersPerConnection) {
    return replies.push_back(
        {from, failed(request, ErrorKind::invalid_argument,
                      fmt::format("the limit for a connection is {} waiting requests", kMaxWaitersPerConnection))});
  }
  const WaiterId id = next_waiter_++;
  const TimePoint expiry = request.timeout >= TimePoint::max() - now ? TimePoint::max() : now + request.timeout;
  Waiter& waiter = waiters_[id] = {.connection = from, .request = request, .missing = *first_missing, .expiry = expiry};
  own.insert(id);
  if (expiry != TimePoint::max()) by_expiry_.insert({expiry, id});
  file_under_key(id, waiter);
}

void StoreMachine::file_under_key(WaiterId id, Waiter& waiter) {
  by_key_[waiter.request.keys[waiter.missing]].insert(id);
}

// A waiter is filed under one of its missing keys only. When that key comes, it moves on to the next missing one, so a
// wait for n keys costs n steps in total, in whatever order they come.
void StoreMachine::wake(std::string_view key, Replies& replies) {
  if (by_key_.empty() || map_.find(key) == nullptr) return;
  auto filed = by_key_.extract(std::string(key));
  if (filed.empty()) return;
  for (const WaiterId id : filed.mapped()) {
    Waiter& waiter = waiters_.at(id);
    if (const auto next = find_missing(waiter.request.keys, waiter.missing)) {
      waiter.missing = *next;
      file_under_key(id, waiter);
    } else {
      replies.push_back({waiter.connection, found(waiter.request)});
      forget(id);
    }
  }
}

// Searches from `start` round to it, since a key that was there before may have been removed.
std::optional<std::size_t> StoreMachine::find_missing(const std::vector<std::string>& keys, std::size_t start) const {
  for (std::size_t step = 0; step < keys.size(); ++step) {
    const std::size_t index = (start + step) % keys.size();
    if (map_.find(keys[index]) == nullptr) return index;
  }
  return std::nullopt;
}

StoreReply StoreMachine::found(const StoreRequest& request) const {
  return succeeded(request, request.op == StoreOp::get ? *map_.find(request.keys.front()) : Bytes());
}

StoreReply StoreMachine::missing(const StoreRequest& request) const {
  StoreReply reply{.id = request.id, .status = StoreStatus::missing};
  for (const std::string& key : request.keys) {
    if (map_.find(key) == nullptr) reply.keys.push_back(key);
  }
  return reply;
}

void StoreMachine::forget(WaiterId id) {
  const auto found = waiters_.find(id);
  const Waiter& waiter = found->second;
  by_expiry_.erase({waiter.expiry, id});
  const auto filed = by_key_.find(waiter.request.keys[waiter.missing]);
  if (filed != by_key_.end() && filed->second.erase(id) > 0 && filed->second.empty()) by_key_.erase(filed);
  const auto own = by_connection_.find(waiter.connection);
  own->second.erase(id);
  if (own->second.empty()) by_connection_.erase(own);
  waiters_.erase(found);
}

std::vector<AddressedReply> StoreMachine::expire(TimePoint now) {
  Replies replies;
  carry_out_wills(now, replies);
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const WaiterId id = by_expiry_.begin()->second;
    const Waiter& waiter = waiters_.at(id);
    replies.push_back({waiter.connection, missing(waiter.request)});
    forget(id);
  }
  return replies;
}

std::optional<TimePoint> StoreMachine::next_expiry() const {
  std::optional<TimePoint> next;
  if (!by_expiry_.empty()) next = by_expiry_.begin()->first;
  if (!by_delay_.empty()) next = std::min(next.value_or(TimePoint::max()), by_delay_.begin()->first);
  return next;
}

void StoreMachine::drop(ConnectionId connection, TimePoint now) {
  for (auto& [id, will] : wills_) {
    if (will.connection != connection || will.due) continue;
    will.due = now + kWillDelay;
    open_wills_.erase(will.number);
    by_delay_.insert({*will.due, id});
  }
  const auto own = by_connection_.find(connection);
  if (own == by_connection_.end()) return;
  const std::set<WaiterId> ids = own->second;
  for (const WaiterId id : ids) forget(id);
}

}  // namespace lockstep::internal
