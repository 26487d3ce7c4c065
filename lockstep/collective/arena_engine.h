// The ArenaEngine runs collectives among ranks that share memory. group -> ArenaEngine -> arena.
//
// Every collective begins by posting: a rank writes its signature, and what small payload it has, into its slot, and
// waits until all ranks have posted. Then one of three ways, which all ranks choose alike:
//   small     the payload is in the slots; each rank combines all of them for itself. One synchronisation.
//   in place  all ranks' operands lie in the arena (all-reduce only): each rank reduces its slice of all operands and
//   writes the
//             result into all of them. Two synchronisations, the least memory traffic.
//   staged    operands lie anywhere: cache-sized chunks pass through staging buffers.
//
// Beside run(), post() and poll() let a caller start collectives and do its share of them whenever it looks in, which
// is how gradients are reduced during backward without a second thread. Thread rule: as Engine; post(), poll() and
// wait() belong to the same thread as run().
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/collective/engine.h"
#include "lockstep/collective/segment_cursor.h"
#include "lockstep/collective/staged.h"
#include "lockstep/transport/arena.h"

namespace lockstep {

class ArenaEngine final : public Engine {
 public:
  explicit ArenaEngine(std::unique_ptr<Arena> arena);
  ~ArenaEngine() override;

  int rank() const override { return arena_->rank(); }
  int size() const override { return arena_->size(); }
  std::string_view name() const override { return arena_->kind(); }
  void run(const Collective& collective, Deadline deadline) override;
  void abort(std::string_view reason) noexcept override;
  void set_first_report(Duration first) override { arena_->set_first_report(first); }

  // Starts a collective and returns its sequence number. Other ranks may write to the memory that it names until it is
  // finished, whoever waits for it: `keeps` owns that memory and is held until then. Blocks only while kInFlight others
  // are unfinished. If ranks differ in what they have posted, the engine stays failed.
  std::uint64_t post(const Collective& collective, Deadline deadline, std::shared_ptr<const void> keeps = nullptr);
  // Does what can be done without waiting. True if nothing is left unfinished.
  bool poll();
  // Blocks until this collective and all before it are finished.
  void wait(std::uint64_t sequence, Deadline deadline);

  const Arena& arena() const { return *arena_; }

 private:
  enum class Phase { posted, reduced, finished };
  // One unfinished collective of this rank. Its vectors keep their capacity from use to use.
  struct Operation {
    Collective collective;  // its spans point into the vectors below
    Signature signature;
    std::vector<Segment> input;
    std::vector<Segment> output;
    std::vector<std::uint64_t> counts;
    Phase phase = Phase::finished;
    FlightTicket ticket;
    bool small = false;
    bool in_place = false;    // on this rank
    bool may_differ = false;  // from what other ranks came with, and the engine goes on
    Deadline deadline = Deadline::never();
    std::shared_ptr<const void> keeps;  // see post()
  };

  Operation& operation(std::uint64_t sequence) { return operations_[sequence % arena::kInFlight]; }
  void refuse_if_aborted(const Collective& collective) const;
  static void make_room(Operation& operation, const Collective& collective);
  static void keep(Operation& operation, const Collective& collective) noexcept;
  void write_slot(Operation& operation, const Collective& collective);
  bool all_posted(const Operation& operation) const;
  bool all_reduced(const Operation& operation) const;
  bool actionable(const Operation& operation) const;
  // True if the operation moved to another phase.
  bool advance(Operation& operation);
  bool all_agree(const Operation& operation);
  void find_difference(Operation& operation);
  void write_label(std::uint64_t sequence, std::uint64_t name) const;
  CallSide side_of(int peer, std::uint64_t sequence) const;
  void finish_small(Operation& operation);
  bool in_place_everywhere(const Operation& operation) const;
  void reduce_in_place(Operation& operation);
  Error damaged(const Operation& operation, int peer, std::string_view posted) const;
  void finish(Operation& operation);
  bool progress();
  void retire();
  // Tells the other ranks, unless they know, and the flight recording of all unfinished collectives.
  void note_failure(const Error& error);

  Error explain(const Operation& operation, const WaitFailure& stall) const;
  // "alive, last seen in barrier #41, left it 3.2 s ago"
  PeerHealth health_of(int peer) const;

  std::unique_ptr<Arena> arena_;
  std::array<Operation, arena::kInFlight> operations_;
  std::uint64_t oldest_ = 1;  // first unfinished sequence number
  std::uint64_t next_ = 1;    // of the next collective
  std::uint32_t chunk_ = 0;   // staged chunks so far, the same on all ranks
  StagingWriter writer_;
  std::optional<Error> difference_;  // that run() is to throw
  bool has_warned_of_line_ = false;
  // Scratch of the reductions, one entry a rank.
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::vector<Segment>> peers_segments_;
  std::vector<SegmentCursor> cursors_;
};

}  // namespace lockstep
