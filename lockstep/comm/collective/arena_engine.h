// The ArenaEngine runs collectives among ranks that share memory. group -> ArenaEngine -> arena.
//
// Every collective begins by posting: a rank writes its signature, and what small payload it has, into its slot. Once
// all ranks have posted, it is done in one of three ways, which all ranks choose alike:
//
//   small     the payload is in the slots; each rank combines all of them for itself. One synchronisation.
//
//   in place  all ranks' operands lie in the arena (all-reduce and reduce only): each rank reduces its slice of all
//             operands and writes the result into all of them. Two synchronisations, the least memory traffic.
//
//   staged    operands lie anywhere: cache-sized chunks pass through staging buffers, in lockstep with the other
//             ranks. So a poll() that finds all ranks there blocks, until the deadline that was posted.
//
// poll() lets a caller do its share of posted collectives whenever it looks in: gradients are reduced during backward
// without a second thread. Thread rule: as Engine.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/collective/arena_in_place.h"
#include "lockstep/comm/collective/arena_staged.h"
#include "lockstep/comm/collective/engine_base.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

class ArenaEngine final : public EngineBase {
 public:
  explicit ArenaEngine(std::unique_ptr<Arena> arena);
  ~ArenaEngine() override;

  std::string_view name() const override { return arena_->kind(); }
  std::shared_ptr<ArenaHeap> heap() const override { return arena_->heap(); }
  bool advances_in_poll() const override { return true; }
  void set_first_report(Duration first) override { arena_->set_first_report(first); }

 private:
  // in_place: as far as this rank's operands are concerned.
  enum class Way { small, in_place, staged };

  void check_failure() const override {
    EngineBase::check_failure();
    arena_->check_abort();
  }
  void begin(Operation& operation, const Collective& collective) override;
  void advance(Operation& operation) override;
  void await(Operation& operation, Deadline deadline) override;
  Error fail(const Operation& operation, const Error& error) override;
  void tell_abort(const Error& error) noexcept override { arena_->abort(error); }
  void look_at_peers() override;

  Way& way_of(const Operation& operation) { return ways_[operation.signature.sequence % kInFlight]; }
  void write_slot(Operation& operation, const Collective& collective);
  bool all_posted(const Operation& operation) const;
  bool all_reduced(const Operation& operation) const;
  bool actionable(const Operation& operation) const;
  bool all_agree(const Operation& operation);
  Error difference(const Operation& operation) const;
  void begin_move();
  void complete(Operation& operation);

  std::unique_ptr<Arena> arena_;
  std::array<Way, kInFlight> ways_{};  // of the unfinished collectives
  std::uint32_t chunk_ = 0;            // staged chunks so far, the same on all ranks
  StagingWriter writer_;
  bool has_warned_of_line_ = false;
  std::vector<const std::byte*> inputs_;  // scratch, one entry a rank
  InPlaceReduction in_place_;
};

}  // namespace lockstep::internal
