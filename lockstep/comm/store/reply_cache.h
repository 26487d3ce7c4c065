// A ReplyCache keeps what a store server has replied to changing requests, so that a request that is repeated after a
// lost connection gets the same reply and is not executed twice. Pure; not thread-safe. REQUIRES: `now` never goes
// back.
//
// Every request says below which number all requests of its client have ended, so a reply is kept only while it may
// still be asked for. Beyond the limits the oldest are dropped; a request whose reply was dropped is refused.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/comm/store/store_protocol.h"

namespace lockstep::internal {

class ReplyCache {
 public:
  static constexpr std::size_t kMaxReplies = std::size_t{16} << 10;
  static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxClients = 4096;
  // A client without requests for so long is forgotten.
  static constexpr Duration kKeptFor = std::chrono::minutes(10);

  enum class State {
    unseen,     // execute it
    replied,    // repeat the reply
    ended,      // a late copy: the client no longer wants it
    forgotten,  // not known whether it was executed
  };
  struct Found {
    State state = State::unseen;
    const StoreReply* reply = nullptr;  // replied; valid until the next call
  };
  // REQUIRES: changes_state(request.op).
  Found find(const StoreRequest& request, TimePoint now);
  // REQUIRES: find() has just returned `unseen`.
  void insert(const StoreRequest& request, const StoreReply& reply, TimePoint now);

  std::size_t replies() const { return order_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t clients() const { return clients_.size(); }

 private:
  struct Entry {
    StoreReply reply;
    std::uint64_t order = 0;
  };
  struct Client {
    TimePoint seen;
    std::uint64_t ended = 0;      // all requests below have ended
    std::uint64_t forgotten = 0;  // replies of requests below may have been forgotten
    std::map<std::uint64_t, Entry> replies;
  };
  using Clients = std::unordered_map<std::uint64_t, Client>;
  using Replies = std::map<std::uint64_t, Entry>;

  void forget_clients(TimePoint now);
  void forget_oldest_reply();
  Replies::iterator drop(Client& client, Replies::iterator entry);

  Clients clients_;
  std::set<std::pair<TimePoint, std::uint64_t>> by_age_;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> order_;  // -> client, request
  std::uint64_t next_order_ = 0;
  std::size_t bytes_ = 0;
  TimePoint forgotten_seen_ = TimePoint::min();  // when a forgotten client was last seen
};

}  // namespace lockstep::internal
