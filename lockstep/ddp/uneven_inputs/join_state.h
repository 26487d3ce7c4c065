// A rank that has no more data goes on taking part in the others' collectives, as their shadow: it computes with old
// data and contributes nothing. Code that communicates by itself asks is_joined() and contributes what changes no
// result: zeros to a sum, a count of 0. All of this belongs to the calling thread; see join.h.
#pragma once

namespace lockstep {

struct JoinState {
  bool shadowing = false;
  bool over_active = false;  // averages are over the ranks that are not shadowing, instead of over all
};

JoinState join_state();
inline bool is_joined() { return join_state().shadowing; }

// Sets the state while it lives.
class JoinScope {
 public:
  explicit JoinScope(JoinState state);
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  JoinState previous_;
};

}  // namespace lockstep
