// Links are the streams to all peers in one collective after the other; each begins with this rank's signature.
// Exchange -> Links -> Mesh.
//
// While signatures are missing, what arrives is kept in scratch memory or left in the stream: nothing is written to the
// caller's output before all have been compared.
//
// Beside the streams ranks announce their calls: those that wait for long in a tree, where a rank exchanges data with
// its neighbours only, and all once calls differ. An announcement of a later collective is kept until this rank is in
// it; no rank announces a difference in an earlier one, which all have entered with equal calls.
// One thread at a time; never blocks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/comm/collective/collective.h"
#include "lockstep/comm/collective/executor.h"
#include "lockstep/comm/collective/mismatch.h"
#include "lockstep/comm/collective/peer_stream.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class Links {
 public:
  using Presence = PeerStream::Presence;

  explicit Links(Mesh& mesh);  // borrowed

  void set_call_sites(CallSites sites) { call_sites_ = sites; }
  void set_failure_note(const FailureNote* note) { failure_note_ = note; }  // borrowed

  // The executor sets up the streams.
  void begin(const Collective& collective, const Signature& signature, Executor& executor);
  // Move some bytes to or from a peer; whether any were moved. Throw what the Mesh throws; receive() throws
  // Error{corrupt_data} for a damaged signature.
  bool send(int peer);
  bool receive(int peer);

  // Tells all peers this rank's call, and one that differs if it knows of one.
  void announce();
  // What failed on the peer after its last collective, as errors say it after another text: "; before that, ...".
  std::string failure_of(int peer) const;
  // Reads what peers have announced. Error{corrupt_data} if it cannot be right.
  void take_announcements();

  // Whether the signatures of all peers that this rank expects one of have come, and agree.
  bool has_compared() const { return signatures_missing_ == 0; }
  // Whether a peer has made another call. Then nothing more is received.
  bool differ() const { return differs_ >= 0; }
  // The calls that are known.
  std::vector<CallSide> sides() const;
  // Whether all has been sent and received.
  bool is_done() const;
  // What the mesh is to wait for. Overwrites the list.
  void list_interests(std::vector<Mesh::Interest>& interests);

  // The peers in use, the next neighbour first, so that not all send to the same one.
  const std::vector<int>& peers() const { return peers_; }
  std::span<PeerStream> streams() { return streams_; }
  PeerStream& stream(int peer) { return streams_[static_cast<std::size_t>(peer)]; }
  const PeerStream& stream(int peer) const { return streams_[static_cast<std::size_t>(peer)]; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int peer_at(int step) const { return (rank_ + step) % size_; }
  std::string peer_name(int peer) const { return mesh_.peer_name(peer); }
  bool is_connected(int peer) const { return mesh_.is_connected(peer); }
  const Signature& signature() const { return signature_; }
  const Signature& previous() const { return previous_; }  // of the collective before; sequence 0: there was none
  bool has_announced() const { return has_announced_; }
  // Whether there is something to be sent to the peer now.
  bool can_send(int peer) const { return !next_to_send(stream(peer)).empty(); }

 private:
  ByteSpan next_to_send(const PeerStream& stream) const;
  MutableByteSpan next_to_receive(PeerStream& stream) const;
  // `bytes` more of the signature and of the row after it are there.
  void take_head(int peer, std::size_t bytes);
  void take_signature(int peer);
  void take_calls(const std::vector<CallSide>& calls);
  // Whether the peer's call agrees; else ranks differ.
  bool compare(int peer, const Signature& theirs);
  bool agrees(int peer, const Signature& theirs);
  CallSide own_side() const;

  Mesh& mesh_;
  const int rank_;
  const int size_;
  CallSites call_sites_ = CallSites::warn;
  bool has_warned_of_line_ = false;
  const FailureNote* failure_note_ = nullptr;

  Executor* executor_ = nullptr;
  Signature signature_;
  Signature previous_;
  std::vector<PeerStream> streams_;  // by peer; the own one is idle
  std::vector<int> peers_;
  int signatures_missing_ = 0;
  int differs_ = -1;  // the first peer that does
  bool has_announced_ = false;
  std::vector<std::vector<CallSide>> announced_;  // by peer, until this rank is in that collective
  int unread_ = 0;                                // of these
};

}  // namespace lockstep::internal
