// A PeerWatch is how ranks that are still meeting or connecting learn at once that one of them has died or given up.
// introduction, connecting -> PeerWatch -> Error. Thread-safe.
//
// A process of the same machine is watched directly. Of all others the store knows: each leaves a last will there,
// under the key under which who gives up says why. The first such word ends the meeting for all, so that all name the
// same.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/health/process_watch.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/store/store.h"

namespace lockstep {

// What a rank that has no time left still has to look for a reason.
inline constexpr Duration kLastLook = std::chrono::milliseconds(200);

class PeerWatch {
 public:
  // `store` is what the meeting alone uses of the job's store. `doing` ends "... has died while": "joining the job".
  PeerWatch(std::shared_ptr<Store> store, Member me, int size, std::string doing);

  // Leaves the last will. Blocks as the store does.
  void begin(Deadline deadline);
  // Somebody who has introduced himself.
  void add(const Member& member);

  // Throws if one of the others is known to have died or given up: Error{peer_lost}, or what he gave up with. Looks at
  // most so often that it may be called all the time.
  void check(Deadline deadline);
  // The same, at once.
  void look(Deadline deadline);
  // The first word of somebody who has given up or died, if there is one.
  std::optional<Error> failure(Deadline deadline);
  // What the others are to throw, unless there is a word already. Blocks for a moment at most.
  void give_up(ErrorKind kind, const std::string& text, int about) noexcept;
  // The same for `error`, with which this rank leaves. Returns what to throw: the first word, if `error` may be no more
  // than a consequence of that, else `error`. Called before this rank closes anything, so that whoever finds it gone
  // finds the word.
  Error cause_of(const Error& error);
  // From now on errors here count the ranks of a part of those who meet: its rank i is their rank ranks[i].
  void set_ranks(std::vector<int> ranks);

  // All have met. From now on it sees nothing; the last will is withdrawn.
  void end(Deadline deadline) noexcept;
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }

  // The pause between two looks, and so how long a wait for others may last before the next one.
  Duration period() const { return period_; }

 private:
  struct Watched {
    Member member;
    ProcessWatch process;
  };

  Error died(const std::vector<Member>& members) const;
  [[noreturn]] void report(const std::vector<Member>& dead, Deadline deadline);
  Bytes say(const Bytes& word);
  Error heard(const Bytes& word) const;
  Error known(const Error& error) const;  // with its ranks as set_ranks() counts them
  int known_as(int rank) const;           // -1: it is not of the part
  int rank_of(int peer) const;

  const std::shared_ptr<Store> store_;
  const Member me_;
  const std::string doing_;
  const Duration period_;
  std::atomic<bool> is_over_{false};
  mutable std::mutex mutex_;
  // State below is protected by mutex_.
  std::vector<Watched> watched_;
  std::vector<int> ranks_;  // empty: all that meet
  TimePoint looked_ = TimePoint::min();
};

}  // namespace lockstep
