// A JoinWatch is how ranks that are still joining or connecting learn at once that one of them has died or given up.
// registration, connecting -> JoinWatch -> Error. Thread-safe.
//
// Processes of this machine are watched through the kernel. All others leave a last will in the store, which the store
// posts when their connection ends. A rank that gives up posts its error under the same key. The first error posted
// there ends the joining for all, so that all name the same rank.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/health/process_watch.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

// A process that joins.
struct PeerProcess {
  int rank = 0;
  std::string name;         // "rank 2 (host n1, pid 811)"
  std::string node_id;      // equal for processes of one machine
  int pid = 0;              // as its own machine counts
  std::uint64_t start = 0;  // see process_watch.h; 0 if it is not known
};

// The time to look for a cause that a rank has even at its deadline.
inline constexpr Duration kLastLook = std::chrono::milliseconds(200);

class JoinWatch {
 public:
  // `store`: a part of the job's store that only those who join use. `doing` completes "... has ended while": "joining
  // the job".
  JoinWatch(std::shared_ptr<Store> store, PeerProcess me, int size, std::string doing);

  // Leaves the last will. Blocks as the store does.
  void begin(Deadline deadline);
  // A rank that has registered.
  void add(const PeerProcess& peer);

  // Throws if another rank is known to have died or given up: Error{peer_lost}, or the error with which it gave up.
  // Cheap to call: it looks once a period.
  void check(Deadline deadline);
  // The same, at once.
  void look(Deadline deadline);
  // The first error posted, if there is one.
  std::optional<Error> failure(Deadline deadline);
  // Posts what the others are to throw, unless an error is posted already. Blocks for a moment at most.
  void give_up(const Error& error) noexcept;
  // Posts `error`, with which this rank leaves. Returns what to throw: the first error posted, if `error` may be a mere
  // consequence of it, else `error`. REQUIRES: this rank has closed nothing yet; whoever finds it gone then finds the
  // error posted.
  Error cause_of(const Error& error);
  // From now on errors here count the ranks of a part of those that join: its rank i is their rank ranks[i].
  void set_ranks(std::vector<int> ranks);

  // All have joined. From now on it sees nothing; the last will is withdrawn.
  void end(Deadline deadline) noexcept;
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }

  // The pause between two looks, and so how long a wait for others may last before the next one.
  Duration period() const { return period_; }

 private:
  struct Watched {
    PeerProcess peer;
    ProcessWatch process;
  };

  Error died(const std::vector<PeerProcess>& dead) const;
  [[noreturn]] void report(const std::vector<PeerProcess>& dead, Deadline deadline);
  Bytes post(const Bytes& error);
  Error read(const Bytes& posted) const;
  Error beside(const Error& gone, const Error& error) const;
  Error in_part(const Error& error) const;  // with its ranks as set_ranks() counts them
  int rank_in_part(int rank) const;         // -1: it is not of the part
  int rank_of(int peer) const;

  const std::shared_ptr<Store> store_;
  const PeerProcess me_;
  const std::string doing_;
  const Duration period_;
  std::atomic<bool> is_over_{false};
  mutable std::mutex mutex_;
  // State below is protected by mutex_.
  std::vector<Watched> watched_;
  std::vector<int> ranks_;  // empty: all that join
  TimePoint looked_ = TimePoint::min();
};

}  // namespace lockstep::internal
