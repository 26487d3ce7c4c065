// A ProgressEngine runs all messages of one rank over its Mesh: it gives sends to links, matches receives, keeps
// deadlines and ends what has failed. Messenger -> ProgressEngine -> MessageLink -> Mesh. One thread at a time; only
// wait() blocks. Errors end operations; no call throws, except for lack of memory.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/health/heartbeat.h"
#include "lockstep/messages/matcher.h"
#include "lockstep/messages/message_link.h"
#include "lockstep/transport/mesh.h"

namespace lockstep {

// How a rank fares: what it answered last, and what the kernel knows of its process.
PeerHealth health_of(const Mesh& mesh, const Heartbeat& heartbeat, int rank);

class ProgressEngine final : public LinkObserver {
 public:
  // Both borrowed.
  ProgressEngine(Mesh& mesh, Heartbeat& heartbeat);

  void post(const OperationPtr& operation);
  // Sends a question for a heartbeat.
  void ask(int rank);
  // Ends what is past its deadline, then moves bytes; whether anything moved.
  bool turn();
  // When the next operation is past its deadline, or its peer is to be asked because it soon will be.
  Deadline next_deadline() const;
  // Whether any peer is left from which something may come.
  bool has_peers() const;
  // Sleeps until a peer is ready, the Mesh is woken or the next deadline. REQUIRES: has_peers().
  void wait();
  // Ends everything, now and later.
  void fail_all(const Error& reason);
  // As fail_all(), for a messenger that ends on purpose: tells the peers, as far as that goes without waiting.
  void close(const Error& reason);

  void finish(const OperationPtr& operation, std::exception_ptr error) override;
  void match_receive(const OperationPtr& receive) override;
  Bytes answer_heartbeat() override { return heartbeat_.answer(); }
  bool take_heartbeat(int peer, ByteView answer) override { return heartbeat_.take_answer(peer, answer); }

 private:
  enum class Standing : std::uint8_t {
    open,
    failing,  // the last frame is still to be sent
    left,
    lost,
  };
  struct Peer {
    std::unique_ptr<MessageLink> link;  // none for this rank itself
    Standing standing = Standing::open;
    std::optional<Error> failure;  // unless open
    bool was_reported = false;     // by Mesh::wait()
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void post_to_self(const OperationPtr& send);
  void hand_over(const OperationPtr& receive, const OperationPtr& send);
  bool move(int rank);
  void expire(TimePoint now);
  void inquire(TimePoint now);
  // Says in the log for whom operations wait that have waited for long.
  void report(TimePoint now);
  void await_report(const Operation& operation);
  void time_out(const OperationPtr& operation, TimePoint now);
  std::string progress(const Operation& operation) const;
  std::string state_of(int rank) const;
  bool withdraw(const Operation& operation);
  void handle(int rank, const Error& error);
  // Ends all operations with a rank, and those from any rank if none can be relied on any more.
  void end_link(int rank, Standing standing, const Error& reason);
  const Error* failure_for_any() const;
  void finish_failed(const OperationPtr& operation, const Error& reason);

  Mesh& mesh_;
  Heartbeat& heartbeat_;
  Matcher matcher_;
  std::vector<Peer> peers_;
  std::map<std::uint64_t, OperationPtr> live_;  // by number
  std::set<std::pair<Deadline, std::uint64_t>> deadlines_;
  std::set<std::pair<TimePoint, std::uint64_t>> questions_;  // when to ask the peers how they fare
  std::set<std::pair<TimePoint, std::uint64_t>> reports_;    // when to say in the log that it waits
  std::uint64_t posted_ = 0;
  std::size_t self_bytes_ = 0;  // of own messages, copied, without a receive
  std::optional<Error> over_;   // why nothing goes any more
};

}  // namespace lockstep
