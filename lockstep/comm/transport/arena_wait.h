// How a rank waits in an Arena once spinning has not been enough: it looks for dead and stopped peers, says in the log
// for whom it waits, and moves off a core that it shares with them. Arena -> ArenaWait -> Waiter.
// Belongs to the thread that runs collectives.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/health/local_peers.h"

namespace lockstep::internal {

class Arena;

// Why a wait ends without success.
struct WaitFailure {
  enum class Cause { deadline, died, left, none } cause = Cause::deadline;  // none: it goes on
  int peer = -1;                                                            // that died or left
  std::vector<int> missing = {};  // for whom the wait was, at a deadline or so far
  double elapsed_seconds = 0;     // of this wait
};

class ArenaWait {
 public:
  struct What {
    std::function<bool()> ready;
    std::function<bool(int)> waiting_for;
    std::function<Error(const WaitFailure&)> explain;
  };

  explicit ArenaWait(const Arena& arena);
  void set_first_report(Duration first) { first_report_ = first; }

  // See Arena::find_dead().
  int find_dead();
  // See Arena::await().
  void run(const What& what, Deadline deadline);

 private:
  class Wait;
  void leave_shared_core(const What& what);

  const Arena& arena_;
  LocalPeers peers_;
  Duration first_report_ = Duration::max();
  int shared_waits_ = 0;  // for ranks on this core, since it was last looked whether to leave it
};

}  // namespace lockstep::internal
