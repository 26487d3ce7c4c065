// The ProgressEngine runs all messages of one rank over its Mesh: it gives sends to links, matches receives, keeps
// deadlines and ends what has failed. Messenger -> ProgressEngine -> MessageLink -> Mesh.
// One thread at a time; only wait() blocks. Errors end operations; no call throws, except for lack of memory.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/health/heartbeat.h"
#include "lockstep/comm/messages/matcher.h"
#include "lockstep/comm/messages/message_link.h"
#include "lockstep/comm/messages/request_timers.h"
#include "lockstep/comm/messages/self_link.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// The state of a rank: its last answer, and what the kernel knows of its process.
PeerHealth health_of(const Mesh& mesh, const Heartbeat& heartbeat, int rank);

class ProgressEngine final : public LinkObserver {
 public:
  // Both borrowed.
  ProgressEngine(Mesh& mesh, Heartbeat& heartbeat);

  void post(const OperationPtr& operation);
  // Sends a request for a heartbeat.
  void ask(int rank);
  // Ends what is past its deadline, then moves bytes; whether anything moved.
  bool progress();
  // When something is to be done for an operation that waits; see RequestTimers.
  Deadline next_deadline() const { return timers_.next(); }
  // Whether any peer is left from which something may come.
  bool has_peers() const;
  // Sleeps until a peer is ready, the Mesh is woken or the next deadline. REQUIRES: has_peers().
  void wait();
  // Ends everything, now and later.
  void fail_all(const Error& reason);
  void count_awaited(const Operation& operation, int change);
  // As fail_all(), for a messenger that ends on purpose: tells the peers, as far as that goes without waiting.
  void close(const Error& reason);

  void finish(const OperationPtr& operation, std::exception_ptr error) override;
  void fail(const OperationPtr& operation, const Error& reason) override;
  void match_receive(const OperationPtr& receive) override;
  Bytes answer_heartbeat() override { return heartbeat_.answer(); }
  bool take_heartbeat(int peer, ByteView answer) override { return heartbeat_.take_answer(peer, answer); }

 private:
  enum class LinkState : std::uint8_t {
    open,
    failing,  // the last frame is still to be sent
    left,
    lost,
  };
  struct Peer {
    std::unique_ptr<MessageLink> link;  // none for this rank itself
    LinkState state = LinkState::open;
    std::optional<Error> failure;  // unless open
    bool was_reported = false;     // by Mesh::wait()
    int awaited = 0;               // receives from it
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  bool move(int rank);
  void expire(TimePoint now);
  void inquire(TimePoint now);
  // Logs for which ranks operations wait that have waited for long.
  void report(TimePoint now);
  void time_out(const OperationPtr& operation, TimePoint now);
  std::string progress_of(const Operation& operation) const;
  std::string state_of(int rank) const;
  bool cancel(const Operation& operation);
  void handle(int rank, const Error& error);
  // Ends all operations with a rank, and receives from any rank if those can no longer be relied on.
  void end_link(int rank, LinkState state, const Error& reason);
  const Error* failure_for_any() const;

  Mesh& mesh_;
  Heartbeat& heartbeat_;
  Matcher matcher_;
  SelfLink self_;
  std::vector<Peer> peers_;
  std::map<std::uint64_t, OperationPtr> live_;  // by number
  RequestTimers timers_;
  std::uint64_t posted_ = 0;
  int awaited_from_any_ = 0;
  std::optional<Error> over_;  // why nothing goes any more
};

}  // namespace lockstep::internal
