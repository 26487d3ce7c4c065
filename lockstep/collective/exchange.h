// An Exchange moves the bytes of one collective after the other over a Mesh, as the chunk plan says. LinkEngine ->
// Exchange -> Mesh.
//
// On every link this rank's signature goes first. While signatures are still missing, what arrives is kept in scratch
// memory or left in the link: nothing is written to the caller's output before all have been compared. Rows are reduced
// chunk by chunk, as soon as all ranks' rows reach that far, while later chunks arrive and earlier results are sent on.
//
// In a tree (tree_plan.h) only neighbours speak, and a message waits until all of it is there. But who waits for long,
// or sees that ranks disagree, shows all others its signature and looks at theirs, so that every rank knows who has not
// come, and finds the disagreement for itself. So a link may carry the announcement of a signature, which the peer
// comes to read later or earlier: it is known by its sequence number. One thread at a time. Blocks in Mesh::wait only.
// Memory is kept from call to call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/collective/engine.h"
#include "lockstep/collective/link_plan.h"
#include "lockstep/collective/segment_cursor.h"
#include "lockstep/collective/tree_plan.h"
#include "lockstep/health/failure_detector.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/transport/mesh.h"

namespace lockstep {

class Exchange {
 public:
  Exchange(Mesh& mesh, Topology topology, const LinkTuning& tuning);

  // REQUIRES: check_arguments() has passed. Throws what the Mesh throws, and Error{desync} once this rank's signature
  // is on its way to all peers. After an Error the streams are out of step, and there may be no further call, unless
  // it is_aligned().
  void run(const Collective& collective, const Signature& signature, Deadline deadline);
  // After Error{desync}: whether all ranks have it, and their next calls find the links as if nothing had been.
  bool is_aligned() const { return is_aligned_; }
  void set_after_mismatch(AfterMismatch after) { after_mismatch_ = after; }
  void set_call_sites(CallSites sites) { call_sites_ = sites; }
  void set_first_report(Duration first) { first_report_ = first; }
  // What failed on this rank, for the others' errors. Borrowed.
  void set_failure_note(const FailureNote* note) { failure_note_ = note; }

  // Whom to ask about ranks that do not come. Borrowed; null: nobody.
  void set_failure_detector(FailureDetector* detector) { detector_ = detector; }

  // After a timeout: "rank 2 (host b, pid 71) has not come to it: alive, ...; ..." and the first of the missing ranks,
  // or -1. Silent ones come first, then those that have not come; those that came may well be waiting for them.
  struct Missing {
    int first = -1;
    std::string text;
  };
  Missing missing() const;

 private:
  // Where a peer's rows begin in scratch memory; its signature ends there.
  static constexpr std::size_t kRowsOffset = 64;

  // What is known of a peer in this collective. gone: it has left, and nothing of it is needed.
  enum class Presence { unknown, come, gone };

  // What is left to be done on one link.
  struct Link {
    LinkPlan plan;
    Presence presence = Presence::unknown;
    bool is_expected = true;  // the peer's signature, and what follows it
    bool is_answer = false;   // what goes first is answer_, not header_
    bool is_known = false;    // theirs, of this collective
    Signature theirs;
    std::size_t header_bytes = 0;
    std::size_t header_sent = 0;
    std::size_t announced = 0;            // bytes of announcement_
    std::vector<Segment> operand_memory;  // of plan.send_operand
    SegmentCursor operand;
    std::size_t operand_left = 0;
    // Of what is reduced here, the part that goes to the peer.
    std::size_t carry_begin = 0;
    std::size_t carry_end = 0;
    std::size_t carry_sent = 0;          // up to here
    std::vector<Segment> result_memory;  // of plan.send_results
    SegmentCursor result;
    std::size_t result_bytes = 0;
    std::size_t result_sent = 0;

    // kRowsOffset bytes that end with the peer's signature, then the window of rows.
    std::vector<std::byte> scratch;
    std::size_t signature_received = 0;
    std::size_t row_element = 1;  // bytes of one element of the row
    std::size_t row_bytes = 0;
    std::size_t row_window = 0;  // how many of them may be here
    std::size_t row_received = 0;
    std::vector<Segment> output_memory;  // of plan.receive
    SegmentCursor output;
    std::size_t output_bytes = 0;
    std::size_t output_received = 0;
  };

  void begin(const Collective& collective, const Signature& signature);
  void begin_reduction();
  void begin_link(int peer);
  void begin_tree();
  void expect_row(Link& link, std::size_t bytes, std::size_t window);
  void move_all(Deadline deadline);
  bool send(int peer);
  bool receive(int peer);
  // `bytes` more of the signature and of the row behind it are there.
  void take_head(int peer, std::size_t bytes);
  // Whether a signature is of an earlier collective, which ended before this rank read it.
  bool is_bygone(const std::byte* signature) const;
  void take_signature(int peer);
  bool agrees(int peer, const Signature& theirs);
  Error no_signature(int peer) const;
  Error difference_with(int peer, const Signature& theirs) const;
  [[noreturn]] void throw_difference(const Error& seen, Deadline deadline);
  void copy_own_part();
  // In a tree: lengthens the bundle by what has come; makes the output and the answer once all is there.
  bool join_rows();
  bool conclude_tree();
  bool reduce_ready();
  // The delivery that the next element reduced belongs to, and how many bytes of it are left.
  Delivery next_delivery() const;
  void reduce_chunk(std::size_t count);
  void reduce_run(std::byte* output, std::size_t count);
  void reduce_wide(std::byte* output, std::size_t count);
  // Where the next element of the rank's row is.
  const std::byte* row(int rank) const;
  // What this rank has gathered in a tree, or has been answered.
  const std::byte* bundle() const;
  // Whether the announcement goes out next, or the rest of it.
  bool is_to_announce(const Link& link) const;
  // How far what goes first on a link may be sent.
  std::size_t header_ready(const Link& link) const;
  ByteSpan next_to_send(const Link& link) const;
  MutableByteSpan next_to_receive(Link& link) const;
  // Bytes of what the link passes on that are there.
  std::size_t result_ready(const Link& link) const;
  std::size_t arrived(const Passed& passed) const;
  std::size_t window_bytes(std::size_t element) const { return window_elements_ * element; }
  bool sent(const Link& link) const;
  bool received(const Link& link) const;
  bool finished() const;
  void wait(Deadline deadline);
  TimePoint first_look(TimePoint now, Deadline deadline) const;
  // Asks the ranks that hold this one up for a heartbeat; warns of those that have given none for long.
  void look(TimePoint now);
  void tell_all();
  bool may_hold_up(int peer) const;
  bool holds_up(int peer) const;
  bool is_heard(int peer) const;
  bool is_told(int peer) const;
  // What holds this rank up, as far as that is the peer.
  std::string hold_up(int peer) const;
  // After a failure: brings this rank's signature to all who can still be told and, if looking, takes in theirs.
  // Returns the desync found on the way.
  enum class Looking { no, yes };
  std::optional<Error> settle_signatures(Deadline deadline, Looking looking);

  // After a desync: hears all ranks, and brings the links back into step. Returns the error that says what all ranks
  // came with. Throws if some rank does not come.
  struct Return;
  Error realign(Deadline deadline);
  bool send_back(int peer, Return& back);
  bool receive_back(int peer, Return& back);
  CallReport own_report() const;

  Link& link(int peer) { return links_[static_cast<std::size_t>(peer)]; }
  const Link& link(int peer) const { return links_[static_cast<std::size_t>(peer)]; }
  int peer_at(int step) const { return (rank_ + step) % size_; }

  Mesh& mesh_;
  const Topology topology_;
  FailureDetector* detector_ = nullptr;
  TimePoint next_look_;      // of this collective; unset until it waits
  TimePoint waits_since_;    // the first wait of this collective, once next_look_ is set
  bool has_warned_ = false;  // in this collective
  Duration first_report_ = kFirstReport;
  WaitReports reports_;  // of this collective
  AfterMismatch after_mismatch_ = AfterMismatch::go_on;
  bool is_aligned_ = false;
  CallSites call_sites_ = CallSites::warn;
  bool has_warned_of_line_ = false;
  const FailureNote* failure_note_ = nullptr;
  const LinkTuning tuning_;
  const int rank_;
  const int size_;

  const Collective* collective_ = nullptr;
  Signature signature_;
  Signature announcement_;  // signature_ on its own, without the message: the bits of its check are inverted
  Signature previous_;      // of the collective before; sequence 0: there was none
  ChunkPlan plan_;
  // The signature and, in a small collective, the operand, or in a tree the bundle.
  std::vector<std::byte> header_;
  std::size_t header_there_ = 0;  // bytes
  int signatures_missing_ = 0;
  std::vector<int> peers_;         // who is spoken to, the next neighbour first, so that not all send to the same one
  std::size_t element_ = 1;        // bytes of one
  std::size_t carry_element_ = 1;  // of a partial result: float16 and bfloat16 are rounded at the end only
  std::size_t given_element_ = 1;  // of what is reduced here
  std::size_t chunk_elements_ = 0;
  std::size_t window_elements_ = 0;
  std::size_t to_reduce_ = 0;  // elements
  std::size_t reduced_ = 0;
  std::vector<Delivery> deliveries_;  // of plan_, with one for carried_to
  std::vector<std::byte> carry_;      // the window of what has been reduced and is on its way to other ranks
  std::vector<Segment> own_memory_;   // of plan_.own
  std::vector<float> wide_;
  SegmentCursor own_;
  SegmentCursor result_;
  bool has_told_all_ = false;  // its signature, or is doing so
  // In a tree: how many of tree_.receive are in the bundle, whether the output and the answer are there, and the answer
  // of a reduction behind the signature.
  TreePlan tree_;
  std::size_t joined_ = 0;
  bool is_concluded_ = false;
  std::vector<std::byte> answer_;
  std::vector<Link> links_;  // by peer; the own one is idle
  std::vector<const std::byte*> rows_;
  std::vector<Mesh::Interest> interests_;
};

}  // namespace lockstep
