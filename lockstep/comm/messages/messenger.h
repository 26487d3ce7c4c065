// A Messenger exchanges messages between any two ranks of a group. Request <- Messenger -> ProgressEngine -> Mesh.
//
// Messages between two ranks with the same tag arrive in the order in which they were sent, and receives take them in
// the order in which they were posted. With different tags any order is fine, as is sending to oneself. A message of at
// most kEagerBytes is on its way, and its send completed, whether or not somebody receives it, as long as the receiver
// has room (kUnexpectedBytes a sender); any other waits at its sender until there is a receive for it.
//
// Any thread may call. A thread of the Messenger moves the bytes; it sleeps while there is nothing to move.
//
// Errors that fail a transfer:
//   desync      the message has another size than the receive expects. A message that was on its way already has
//               completed its send; any other fails it, too. Only this message is affected.
//   timeout     the deadline passed. A message of which a part has moved already takes the link to that rank with it.
//   peer_lost   the other rank has died, left or ended the link; also every later transfer with it. A receive from
//               any rank fails when one rank dies with which this one is connected, or when all have left.
//   aborted     somebody ended the group, or the Messenger was destroyed first. Or whatever error ended the group.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/health/heartbeat.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/messages/operation.h"
#include "lockstep/comm/messages/request.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// Ends the messages of all ranks of a mesh with Error{aborted}, whether or not they have a Messenger. Never blocks.
void abort_messages(Mesh& mesh, std::string_view reason) noexcept;

class Messenger final : public FailureDetector {
 public:
  // log: what it answers from when other ranks ask how this one fares.
  // REQUIRES: nothing else uses the mesh, and the mesh of every other rank has a Messenger, too.
  // first_report: after which a transfer that waits says so in the log; see WaitReports.
  explicit Messenger(std::unique_ptr<Mesh> mesh, FlightLog log = {}, Duration first_report = kFirstReport);
  // Ends unfinished transfers with Error{aborted}. What was sent completely still arrives. Does not wait for peers.
  ~Messenger() override;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }
  std::string peer_name(int rank) const { return mesh_->peer_name(rank); }
  // Whether the caller is its own thread, which cannot destroy it.
  bool runs_here() const { return thread_.get_id() == std::this_thread::get_id(); }

  // Begin to send or receive; never block. The memory belongs to the transfer until that is completed; a list of pieces
  // is read or written as if joined. Error{invalid_argument} for a rank that does not exist.
  Request send(int peer, std::uint64_t tag, ByteSpan data, Deadline deadline);
  Request send(int peer, std::uint64_t tag, const std::vector<ByteSpan>& pieces, Deadline deadline);
  // `peer` may be kAnySource.
  Request receive(int peer, std::uint64_t tag, MutableByteSpan data, Deadline deadline);
  Request receive(int peer, std::uint64_t tag, std::vector<MutableByteSpan> pieces, Deadline deadline);

  void ask(int rank) noexcept override;
  PeerHealth health(int rank) const override;

  // Ends the group: all transfers of all ranks, now and later, fail with Error{aborted}. Never blocks.
  void abort(std::string_view reason) noexcept;

 private:
  Request post(const Envelope& envelope, std::vector<MutableByteSpan> memory, Deadline deadline);
  void run();
  void wake() noexcept;

  const ForkGuard fork_guard_;
  const std::unique_ptr<Mesh> mesh_;
  Heartbeat heartbeat_;
  const Duration first_report_;

  std::mutex mutex_;
  std::condition_variable posted_;
  // State below is protected by mutex_.
  std::vector<OperationPtr> inbox_;
  std::vector<int> asked_;  // to be asked for a heartbeat
  std::optional<Error> abort_;
  bool is_ending_ = false;

  std::thread thread_;
};

}  // namespace lockstep::internal
