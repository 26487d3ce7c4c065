// The state of a rank in a step within join(). A rank without more batches has joined: it goes on taking part in the
// others' collectives, computes with old data and contributes nothing. Code that communicates by itself asks
// is_joined() and contributes neutral values: zeros to a sum, a count of 0. Belongs to the calling thread; see join.h.
#pragma once

#include <cstdint>

namespace lockstep {
class ProcessGroup;
}  // namespace lockstep

namespace lockstep::internal {

// The first rank of a step that has its own batch, in the join with that number.
struct ActiveRank {
  int rank = 0;
  std::uint64_t join = 0;  // 0: in none
};

struct JoinState {
  bool joined = false;             // this rank has no more batches
  std::uint64_t joined_since = 0;  // the number of this thread's first autograd node since then
  bool divide_by_active = false;   // averages are over the ranks that have not joined, instead of over all
  ActiveRank active;
  const ProcessGroup* group = nullptr;  // of the join; null: there is none
};

// Recomputation in a backward belongs to the step of its forward.
JoinState join_state();

// Sets the state while it exists.
class JoinScope {
 public:
  explicit JoinScope(JoinState state);
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  JoinState previous_;
};

}  // namespace lockstep::internal

namespace lockstep {

// Whether this rank repeats a step without its own batch. For the step's own collectives.
inline bool is_joined() { return internal::join_state().joined; }

}  // namespace lockstep
