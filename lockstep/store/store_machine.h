// A StoreMachine decides what a store server answers, and when: (state, request, now) -> replies. Pure: it knows no
// sockets, threads or clocks. Not thread-safe. REQUIRES: `now` never goes back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/store/answer_memory.h"
#include "lockstep/store/key_map.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep {

using ConnectionId = std::uint64_t;

struct AddressedReply {
  ConnectionId to = 0;
  StoreReply reply;
};

class StoreMachine {
 public:
  static constexpr std::size_t kMaxWaitersPerConnection = 4096;

  // The replies that this request causes, to its sender and to those it wakes.
  std::vector<AddressedReply> handle(ConnectionId from, const StoreRequest& request, TimePoint now);
  // The replies to those whose time is up.
  std::vector<AddressedReply> expire(TimePoint now);
  // When expire() has something to do next.
  std::optional<TimePoint> next_expiry() const;
  // Forgets what a closed connection waits for.
  void drop(ConnectionId connection);

  std::size_t waiting() const { return waiters_.size(); }
  bool is_waiting(ConnectionId connection) const { return by_connection_.contains(connection); }

 private:
  using WaiterId = std::uint64_t;
  struct Waiter {
    ConnectionId connection = 0;
    StoreRequest request;
    std::size_t missing = 0;  // index of the one missing key under which it is filed
    TimePoint expiry;
  };
  using Replies = std::vector<AddressedReply>;

  Replies change_once(ConnectionId from, const StoreRequest& request, TimePoint now);
  StoreReply change(const StoreRequest& request);
  void start_waiting(ConnectionId from, const StoreRequest& request, TimePoint now, Replies& replies);
  void wake(std::string_view key, Replies& replies);
  void file_under_key(WaiterId id, Waiter& waiter);
  void forget(WaiterId id);
  std::optional<std::size_t> find_missing(const std::vector<std::string>& keys, std::size_t start) const;
  StoreReply found(const StoreRequest& request) const;
  StoreReply missing(const StoreRequest& request) const;

  KeyMap map_;
  WaiterId next_waiter_ = 1;
  std::map<WaiterId, Waiter> waiters_;
  std::unordered_map<std::string, std::set<WaiterId>> by_key_;
  std::set<std::pair<TimePoint, WaiterId>> by_expiry_;
  std::unordered_map<ConnectionId, std::set<WaiterId>> by_connection_;

  AnswerMemory answers_;
};

}  // namespace lockstep
