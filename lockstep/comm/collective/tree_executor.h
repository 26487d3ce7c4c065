// The TreeExecutor moves small data by way of a tree (tree_plan.h): ranks exchange messages with their neighbours in it
// only, and a message goes out once all of it is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/collective/executor.h"
#include "lockstep/comm/collective/peer_stream.h"
#include "lockstep/comm/collective/topology.h"
#include "lockstep/comm/collective/tree_plan.h"

namespace lockstep::internal {

class TreeExecutor final : public Executor {
 public:
  // Both borrowed. streams: by peer; this rank's own is idle.
  TreeExecutor(int rank, std::span<PeerStream> streams, const Topology& topology);

  void begin(const Collective& collective, const Signature& signature) override;
  bool advance(bool has_compared) override;
  bool is_done() const override { return phase_ == Phase::done; }
  ByteSpan next_of_range(const PeerStream&) const override { return {}; }

 private:
  // gathering: messages are joined to the bundle, and sent on. done: output and answers are there.
  enum class Phase : std::uint8_t { gathering, done };

  PeerStream& stream(int peer) { return streams_[static_cast<std::size_t>(peer)]; }
  bool is_leader() const { return rank_ == plan_.leader; }
  bool join_messages();
  // Hands out what the bundle has enough of.
  void offer_messages();
  void conclude();
  void reduce();
  // What this rank has gathered, or its leader has answered.
  const std::byte* bundle() const;
  const std::byte* row(int rank) const { return bundle() + plan_.row_at[static_cast<std::size_t>(rank)]; }

  const int rank_;
  const std::span<PeerStream> streams_;
  const Topology& topology_;

  const Collective* collective_ = nullptr;
  Phase phase_ = Phase::done;
  TreePlan plan_;
  std::vector<std::byte> message_;  // the signature, then the row or, on a leader, the bundle
  std::size_t gathered_ = 0;        // bytes of message_ that are there
  std::size_t joined_ = 0;          // of plan_.receive
  std::vector<std::byte> answer_;   // the signature, then the result of a reduction
  std::vector<const std::byte*> rows_;
};

}  // namespace lockstep::internal
