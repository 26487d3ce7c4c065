// A TreeGuest is served in the loop of a process tree, beside its ranks: a watch for hangs, an agent's connections to
// other hosts. All calls come from the thread of that loop, and must not block.
#pragma once

#include <poll.h>

#include <csignal>
#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

// What the ranks of this host are told.
struct TreeOrder {
  enum class Kind {
    go_on,
    stop,  // a request: the signal to each rank's process, and the stop grace
    end,   // as after the failure of a rank: SIGTERM to all of its processes, and the grace
    kill,
  };
  Kind kind = Kind::go_on;
  int signal = SIGTERM;
};

class TreeGuest {
 public:
  virtual ~TreeGuest() = default;

  // All ranks have been started: their pids, the lowest rank first.
  virtual void on_start(const std::vector<int>& /*pids*/) {}
  // Adds what it waits for.
  virtual void watch(std::vector<pollfd>& /*set*/) {}
  virtual Deadline wake_at() const { return Deadline::never(); }
  // After each wait, with the entries that it added.
  virtual TreeOrder serve(std::span<const pollfd> /*ready*/) { return {}; }
  // Whether it sees to it that the ranks are told to stop; else the tree tells them itself.
  virtual bool on_signal(int /*signal*/) { return false; }
  // Another one has come. Whether it asks for something else than the one before, which the guest sees to; else the
  // tree kills its ranks.
  virtual bool on_insist(int /*signal*/) { return false; }
  virtual void on_end(const RankEnd& /*end*/) {}
};

}  // namespace lockstep::internal
