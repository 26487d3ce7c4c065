#include "lockstep/train/ddp/uneven_inputs/join.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/world.h"
#include "lockstep/train/ddp/checks/ddp_errors.h"

namespace lockstep {

using namespace internal;

namespace {

thread_local JoinState current;

// The nodes that this thread has made in steps of ended joins for which it had no more batches.
struct JoinedNodes {
  std::uint64_t first, last;  // last: one after them
};
constexpr std::size_t kMostJoins = 16;
thread_local std::deque<JoinedNodes> joined_before;

}  // namespace

// Backward may recompute nodes of another step.
JoinState internal::join_state() {
  JoinState state = current;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || node->thread_id() != at::RecordFunction::currentThreadId()) return state;
  const std::uint64_t number = node->sequence_nr();
  const auto holds = [&](const JoinedNodes& nodes) { return nodes.first <= number && number < nodes.last; };
  state.joined = (state.joined && number >= state.joined_since) || std::ranges::any_of(joined_before, holds);
  return state;
}

JoinScope::JoinScope(JoinState state) : previous_(std::exchange(current, state)) {}
JoinScope::~JoinScope() { current = previous_; }

namespace join_detail {

namespace {

constexpr int kGoesOn = 1, kIsTold = 2, kIsActive = 4;  // bits of each rank's message

// 0: without stop_with.
int told_bit(const ProcessGroup& group, const World* world) {
  if (world == nullptr) return 0;
  if (world->size() == group.size()) return world->stop_agreement().is_told() ? kIsTold : 0;
  throw_on_all_ranks(group, Error(ErrorKind::invalid_argument,
                                  "join: stop_with is a world of " + std::to_string(world->size()) +
                                      " ranks, but the group has only " + std::to_string(group.size()) +
                                      " of them, and all must stop after the same step: call join() with a group of "
                                      "all ranks, or call stop_requested() at a point that all ranks reach",
                                  {.rank = group.rank(), .operation = "join"}));
}

}  // namespace

std::uint64_t next_node() { return at::sequence_number::peek(); }

JoinedSteps::~JoinedSteps() {
  if (!since) return;
  joined_before.push_back({*since, next_node()});
  if (joined_before.size() > kMostJoins) joined_before.pop_front();
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return ++number;
}

Next next_of_all(const ProcessGroup& group, bool i_go_on, const UnevenOptions& options) {
  const int told = told_bit(group, options.stop_with);
  // In a join within a step that this rank repeats, it goes on with parts of a batch that does not count.
  const bool is_active = i_go_on && !is_joined();
  const at::Tensor mine = at::tensor({(i_go_on ? kGoesOn : 0) | (is_active ? kIsActive : 0) | told}, at::kInt);
  std::string ended;
  bool anybody = false, stops = false;
  int rank = 0;
  std::optional<int> active;
  for (const at::Tensor& theirs : group.all_gather(mine, {.name = "join"})) {
    const int said = *theirs.const_data_ptr<int>();
    const bool goes_on = (said & kGoesOn) != 0;
    if ((said & kIsActive) != 0 && !active) active = rank;
    anybody = anybody || goes_on;
    stops = stops || (said & kIsTold) != 0;
    if (!goes_on) ended += (ended.empty() ? "" : ", ") + std::to_string(rank);
    ++rank;
  }
  if (options.throw_on_early_termination && anybody && !ended.empty()) {
    throw Error(
        ErrorKind::aborted,
        "join: rank " + ended + " has no more batches, and throw_on_early_termination is set, so all ranks stop",
        {.rank = group.rank(), .operation = "join"});
  }
  if (stops && options.stop_with != nullptr) options.stop_with->stop_agreement().note_agreed();
  const Kind kind = !anybody ? Kind::nothing : stops ? Kind::last_step : Kind::step;
  return {kind, active.value_or(0)};
}

void throw_never_had_one(const ProcessGroup& group) {
  throw_on_all_ranks(
      group,
      Error(ErrorKind::invalid_argument,
            "join: rank " + std::to_string(group.rank()) +
                " has no batch at all, so it has no step to repeat while other ranks continue. Give every rank one "
                "batch, or give join() a batch of the right shape as `first`",
            {.rank = group.rank(), .operation = "join"}));
}

}  // namespace join_detail
}  // namespace lockstep
