// A StoreMachine decides what a store server replies, and when: (state, request, now) -> replies. Pure: no sockets,
// threads or clocks. Not thread-safe. REQUIRES: `now` never goes back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/store/key_map.h"
#include "lockstep/comm/store/reply_cache.h"
#include "lockstep/comm/store/store_protocol.h"

namespace lockstep::internal {

using ConnectionId = std::uint64_t;

struct AddressedReply {
  ConnectionId to = 0;
  StoreReply reply;
};

class StoreMachine {
 public:
  static constexpr std::size_t kMaxWaitersPerConnection = 4096;
  static constexpr std::size_t kMaxWillsPerConnection = 64;
  static constexpr std::size_t kMaxWillBytes = 4096;
  // After a connection ends, its wills are carried out this much later: a client whose connection broke connects again
  // well before.
  static constexpr Duration kWillDelay = std::chrono::milliseconds(1500);

  // The replies that this request causes, to its sender and to the clients it wakes.
  std::vector<AddressedReply> handle(ConnectionId from, const StoreRequest& request, TimePoint now);
  // The replies to clients whose wait has timed out.
  std::vector<AddressedReply> expire(TimePoint now);
  // When expire() has something to do next.
  std::optional<TimePoint> next_expiry() const;
  // Forgets what a closed connection waits for. A later expire() carries out its last wills, unless their client leaves
  // them again over another connection.
  void drop(ConnectionId connection, TimePoint now);

  std::size_t waiting() const { return waiters_.size(); }
  // Whether closing the connection would lose something: it waits, or its client has left a last will.
  bool is_needed(ConnectionId connection) const;
  // Wills of connections that are open. They are numbered as they come; one that is left again keeps its number.
  std::size_t wills() const { return open_wills_.size(); }
  std::uint64_t next_will() const { return next_will_; }
  // next_will() if no will is open.
  std::uint64_t oldest_will() const { return open_wills_.empty() ? next_will_ : *open_wills_.begin(); }

 private:
  using WaiterId = std::uint64_t;
  struct Waiter {
    ConnectionId connection = 0;
    StoreRequest request;
    std::size_t missing = 0;  // index of the one missing key under which it is filed
    TimePoint expiry;
  };
  using Replies = std::vector<AddressedReply>;

  struct Will {
    ConnectionId connection = 0;
    Bytes value;
    std::uint64_t number = 0;
    std::optional<TimePoint> due;  // once its connection is closed
  };
  using WillId = std::pair<std::uint64_t, std::string>;  // client, key

  StoreReply leave_will(ConnectionId from, const StoreRequest& request);
  void forget_will(std::map<WillId, Will>::iterator will);
  void carry_out_wills(TimePoint now, Replies& replies);
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

  std::map<WillId, Will> wills_;
  std::uint64_t next_will_ = 1;
  std::set<std::uint64_t> open_wills_;
  std::set<std::pair<TimePoint, WillId>> by_delay_;

  ReplyCache replies_;
};

}  // namespace lockstep::internal
