#include "lockstep/ddp/uneven_inputs/join_state.h"

#include <utility>

namespace lockstep {
namespace {

thread_local JoinState current;

}  // namespace

JoinState join_state() { return current; }

JoinScope::JoinScope(JoinState state) : previous_(std::exchange(current, state)) {}
JoinScope::~JoinScope() { current = previous_; }

}  // namespace lockstep
