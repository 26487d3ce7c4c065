// join() lets ranks with different numbers of batches train together. The user's loop -> join -> step, for every batch
// of the longest rank. Collective; blocks; belongs to one thread.
//
//   lockstep::join(world.group(), loader, [&](const lockstep::FashionMnist::Batch& batch) {
//     optimizer.zero_grad();
//     cross_entropy(ddp(batch.data), batch.target).backward();
//     optimizer.step();
//   });
//
// A rank that has no more batches has joined: it repeats the step with its last batch, and contributes nothing. DDP
// contributes zeros, SyncBatchNorm a count of zero, and code that communicates by itself asks is_joined(). All ranks
// make the same steps, so models, optimizers and schedules stay equal, and every collective within the step has all its
// ranks. A step belongs to the thread that has called join(): code that it runs in other threads does not see that the
// rank has joined. (PyTorch's Join repeats the collectives only, which each class must describe, and sends the last
// rank's model to all in the end.)
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/base/failure_note.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/group/stop_agreement.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"

namespace lockstep {

class World;

struct UnevenOptions {
  // Gradients are divided by the number of all ranks, as at the beginning; else by those that still have batches.
  bool divide_by_initial_world_size = true;
  // Instead of joining: Error{aborted} on all ranks, naming those that have no more batches, as soon as there is one
  // while others have.
  bool throw_on_early_termination = false;
  // The loop ends on all ranks after the same step once World::stop_requested() is true, at no extra cost. The world
  // must have the ranks of the group. Remaining batches are left in the loader.
  const World* stop_with = nullptr;
};

struct JoinReport {
  std::uint64_t steps = 0;         // with this rank's own batches
  std::uint64_t joined_steps = 0;  // after them
};

namespace join_detail {

// step: some rank has a batch; last_step: and a rank was asked to stop.
enum class Kind { nothing, step, last_step };
struct Next {
  Kind kind;
  int active_rank;  // the first one that has a batch
};
// Another one for each join of the process.
std::uint64_t next_number();
// The number of this thread's next autograd node.
std::uint64_t next_node();
// The steps of a join for which this rank has no batches, from `since` on. Their nodes are known after the join.
struct JoinedSteps {
  JoinedSteps() = default;
  JoinedSteps(const JoinedSteps&) = delete;
  JoinedSteps& operator=(const JoinedSteps&) = delete;
  ~JoinedSteps();
  std::optional<std::uint64_t> since;
};
// Throws as UnevenOptions::throw_on_early_termination says.
Next next_of_all(const ProcessGroup& group, bool i_go_on, const UnevenOptions& options);
// Error{invalid_argument}: this rank has had no batch, so there is nothing to repeat.
[[noreturn]] void throw_never_had_one(const ProcessGroup& group);

}  // namespace join_detail

// batches: a range of copyable values. first: the batch that a rank without any batch repeats; if such a rank has none,
// all ranks fail. An exception of step or the range ends the group for all ranks, with its text.
template <class Batches, class Step, class Batch = std::decay_t<decltype(*std::declval<Batches&>().begin())>>
JoinReport join(const ProcessGroup& group, Batches&& batches, Step&& step, const UnevenOptions& options = {},
                std::optional<Batch> first = {}) {
  const bool divide_by_active = !options.divide_by_initial_world_size;
  const std::uint64_t number = join_detail::next_number();
  JoinReport report;
  std::optional<Batch>& last = first;
  const auto for_all = [&](auto&& call) {
    try {
      return call();
    } catch (...) {
      group.abort(internal::text_of_exception());
      throw;
    }
  };
  join_detail::JoinedSteps joined_steps;
  const auto run = [&](bool joined, int active_rank) {
    if (joined && !joined_steps.since) joined_steps.since = join_detail::next_node();
    // Within another join, a rank that has joined there contributes nothing here either.
    const internal::JoinState outer = internal::join_state();
    const internal::JoinScope scope({.joined = joined || outer.joined,
                                     .joined_since = outer.joined ? outer.joined_since : joined_steps.since.value_or(0),
                                     .divide_by_active = divide_by_active,
                                     .active = {active_rank, number},
                                     .group = &group});
    for_all([&] { step(std::as_const(*last)); });
  };
  const auto of_batches = [&](auto&& call) {
    const internal::UnevenCalls scope;
    return for_all(call);
  };
  using join_detail::Kind, join_detail::Next;
  auto batch = of_batches([&] { return batches.begin(); });
  const auto end = of_batches([&] { return batches.end(); });
  for (; of_batches([&] { return batch != end; }); of_batches([&] { ++batch; })) {
    of_batches([&] { last.emplace(*batch); });
    const Next next = join_detail::next_of_all(group, true, options);
    run(false, next.active_rank);
    ++report.steps;
    if (next.kind == Kind::last_step) return report;
  }
  for (Kind kind = Kind::step; kind != Kind::last_step;) {
    const Next next = join_detail::next_of_all(group, false, options);
    kind = next.kind;
    if (kind == Kind::nothing) return report;
    if (!last) join_detail::throw_never_had_one(group);
    run(true, next.active_rank);
    ++report.joined_steps;
  }
  return report;
}

}  // namespace lockstep
