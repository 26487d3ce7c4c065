// How a thread waits for what other ranks write into shared memory or send over connections. It spins, which is long
// enough for a peer on another core; yields, which is what a peer on the same core needs; then sleeps, and looks around
// now and then, since a dead peer rings no bell. Arena, ArenaMesh, TcpMesh -> Waiter.
#pragma once

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

// Looks again and again without pause. Whether is_ready() became true.
template <class IsReady>
bool spin_until(IsReady&& is_ready, int spins) {
  for (int spin = 0; spin < spins; ++spin) {
    if (is_ready()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return is_ready();
}

// One wait that spinning has not ended. All of it runs in the waiting thread.
class Waiter {
 public:
  virtual ~Waiter() = default;

  // Whether is_ready() became true by the deadline. Throws what the functions below throw.
  bool wait(Deadline deadline);

 protected:
  struct Steps {
    Duration yield_for;    // more would waste cores on which others compute
    Duration look_period;  // asleep
  };
  explicit Waiter(Steps steps) : steps_(steps) {}

  virtual bool is_ready() = 0;
  // The same, after other threads had their turn on this core.
  virtual bool is_ready_after_yield() { return is_ready(); }
  // Looks for dead peers, and says in the log for whom this rank waits. Throws if the wait has become pointless.
  virtual void look(Duration waited) = 0;
  // Sleeps for at most this long, unless is_ready(). May return early.
  virtual void sleep(Duration most) = 0;

 private:
  const Steps steps_;
};

}  // namespace lockstep::internal
