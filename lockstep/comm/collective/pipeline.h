// The Pipeline is the executor of the flat route and of the one in two levels. Rows are reduced chunk by chunk, in rank
// order, as soon as all of them reach that far, while later chunks arrive and earlier results are sent on. See
// link_plan.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/collective/executor.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/collective/peer_stream.h"
#include "lockstep/comm/collective/segment_cursor.h"
#include "lockstep/comm/collective/topology.h"

namespace lockstep::internal {

class Pipeline final : public Executor {
 public:
  // All borrowed. streams: by peer; this rank's own is idle.
  Pipeline(int rank, std::span<PeerStream> streams, const Topology& topology, const LinkTuning& tuning);

  void set_route(Route route) { route_ = route; }  // before begin()
  void begin(const Collective& collective, const Signature& signature) override;
  bool advance(bool has_compared) override;
  bool is_done() const override { return phase_ == Phase::done; }
  ByteSpan next_of_range(const PeerStream& stream) const override;

 private:
  enum class Phase : std::uint8_t { comparing, reducing, done };

  void begin_reduction();
  void begin_stream(int peer);
  bool has_row(int peer) const;
  std::span<const Segment> operand() const;
  std::size_t ready_bytes(const SendRange& range) const;
  void copy_own_part();
  bool reduce_ready();
  // How many elements can be reduced: rows are there, and what waits to be sent is not overwritten.
  std::size_t limit() const;
  void reduce_chunk(std::size_t count);
  // Reduces rows_: the partial sum of the ranks before, if there is one, then rows in rank order.
  void reduce_rows_to(std::byte* output, std::size_t count);
  bool takes_sum() const { return plan_.carried_from >= 0; }
  bool gives_sum() const { return plan_.carried_to >= 0; }
  bool is_wide() const { return sum_element_ != element_ && (takes_sum() || gives_sum()); }
  // Where the next element of a rank's row is.
  const std::byte* row(int rank) const;

  const int rank_;
  const int size_;
  const std::span<PeerStream> streams_;
  const Topology& topology_;
  const LinkTuning& tuning_;

  const Collective* collective_ = nullptr;
  Phase phase_ = Phase::done;
  Route route_ = Route::flat;
  ReductionPlan plan_;
  LinkPlan link_plan_;               // of the peer whose stream is set up
  std::vector<std::byte> head_;      // the signature and, if it travels whole, the operand
  std::size_t element_ = 1;          // bytes of one
  std::size_t sum_element_ = 1;      // of one of a partial sum
  std::size_t reduced_element_ = 1;  // of one of what is reduced here
  std::size_t chunk_ = 0;            // elements
  std::size_t window_ = 0;
  std::size_t to_reduce_ = 0;
  std::size_t reduced_ = 0;
  std::vector<std::byte> reduced_window_;  // what is reduced and not kept, until it is sent
  std::vector<Segment> own_memory_;        // of plan_.own
  SegmentCursor own_;
  SegmentCursor kept_;
  std::vector<const std::byte*> rows_;
  std::vector<float> wide_;  // rows, and their sum
};

}  // namespace lockstep::internal
