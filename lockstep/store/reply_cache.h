// An ReplyCache is what a store server remembers of its clients, so that a request that is sent again after a lost
// connection is answered again and not done again. Pure; not thread-safe. REQUIRES: `now` never goes back.
//
// Every request says below which number all requests of its client have ended, so an answer is kept only while somebody
// may still ask for it. Beyond the limits the oldest are forgotten; what was forgotten is never done a second time but
// refused.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep {

class ReplyCache {
 public:
  static constexpr std::size_t kMaxAnswers = std::size_t{16} << 10;
  static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxClients = 4096;
  // A client that asked for nothing for so long is forgotten.
  static constexpr Duration kKeptFor = std::chrono::minutes(10);

  enum class Past {
    none,       // do it
    answered,   // give the answer again
    ended,      // the client no longer wants it: a copy that came late
    forgotten,  // nobody can tell whether it was done
  };
  struct Recalled {
    Past past = Past::none;
    const StoreReply* answer = nullptr;  // answered; valid until the next call
  };
  // REQUIRES: changes_state(request.op).
  Recalled recall(const StoreRequest& request, TimePoint now);
  // REQUIRES: recall() has just said `none`.
  void remember(const StoreRequest& request, const StoreReply& answer, TimePoint now);

  std::size_t answers() const { return order_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t clients() const { return clients_.size(); }

 private:
  struct Answer {
    StoreReply reply;
    std::uint64_t order = 0;
  };
  struct Client {
    TimePoint seen;
    std::uint64_t ended = 0;      // all requests below have ended
    std::uint64_t forgotten = 0;  // answers of requests below may have been forgotten
    std::map<std::uint64_t, Answer> answers;
  };
  using Clients = std::unordered_map<std::uint64_t, Client>;
  using Answers = std::map<std::uint64_t, Answer>;

  void forget_clients(TimePoint now);
  void forget_oldest_answer();
  Answers::iterator drop(Client& client, Answers::iterator answer);

  Clients clients_;
  std::set<std::pair<TimePoint, std::uint64_t>> by_age_;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> order_;  // -> client, request
  std::uint64_t next_order_ = 0;
  std::size_t bytes_ = 0;
  TimePoint forgotten_seen_ = TimePoint::min();  // when a forgotten client was last seen
};

}  // namespace lockstep
