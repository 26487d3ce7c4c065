// Links are the streams to all peers in one collective after the other; each begins with this rank's signature.
// Exchange -> Links -> Mesh.
//
// While signatures are missing, what arrives is kept in scratch memory or left in the stream: nothing is written to the
// caller's output before all have been compared.
//
// In a tree a rank exchanges data with its neighbours only. tell_all() makes it send its signature to all others, too,
// and read theirs: the announcement of a signature, without data. A peer reads it later or earlier, perhaps in another
// collective: its sequence number identifies it. One thread at a time; never blocks.
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

  // Borrowed. has_trees: whether some collectives of the group go in trees.
  Links(Mesh& mesh, bool has_trees);

  void set_call_sites(CallSites sites) { call_sites_ = sites; }
  void set_failure_note(const FailureNote* note) { failure_note_ = note; }  // borrowed

  // The executor sets up the streams.
  void begin(const Collective& collective, const Signature& signature, Executor& executor);
  // Takes signatures of this collective that were read in the one before. Throws as receive().
  void take_early_signatures();
  // Move some bytes to or from a peer; whether any were moved. Throw what the Mesh throws; receive() throws
  // Error{desync} for a signature that differs, and Error{corrupt_data} for a damaged one.
  bool send(int peer);
  bool receive(int peer);
  void tell_all();

  // Whether the signatures of all peers that this rank expects one of have come, and agree.
  bool has_compared() const { return signatures_missing_ == 0; }
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
  const Signature& signature() const { return signature_; }
  const Signature& previous() const { return previous_; }  // of the collective before; sequence 0: there was none
  bool has_told_all() const { return has_told_all_; }
  // Whether there is something to be sent to the peer now.
  bool can_send(int peer) const { return !next_to_send(stream(peer)).empty(); }
  // Whether the peer has been told this rank's signature, and this rank has read the peer's, or the peer has left.
  bool has_told(int peer) const;
  bool has_heard(int peer) const;
  // Reads the signature, and tells what it means. Throws as receive().
  void take_signature(int peer);

  CallReport own_report() const;

 private:
  bool is_to_announce(const PeerStream& stream) const;
  ByteSpan next_to_send(const PeerStream& stream) const;
  MutableByteSpan next_to_receive(PeerStream& stream) const;
  // `bytes` more of the signature and of the row behind it are there.
  void take_head(int peer, std::size_t bytes);
  // Whether a signature is of an earlier collective, which ended before this rank read it.
  bool is_stale(const std::byte* signature) const;
  bool agrees(int peer, const Signature& theirs);
  Error no_signature(int peer) const;
  Error difference_with(int peer, const Signature& theirs) const;

  Mesh& mesh_;
  const int rank_;
  const int size_;
  const bool has_trees_;
  CallSites call_sites_ = CallSites::warn;
  bool has_warned_of_line_ = false;
  const FailureNote* failure_note_ = nullptr;

  Executor* executor_ = nullptr;
  Signature signature_;
  Signature announcement_;  // signature_ without data behind it: the bits of its check are inverted
  Signature previous_;
  std::vector<PeerStream> streams_;  // by peer; the own one is idle
  std::vector<int> peers_;
  int signatures_missing_ = 0;
  bool has_told_all_ = false;  // or is doing so
};

}  // namespace lockstep::internal
