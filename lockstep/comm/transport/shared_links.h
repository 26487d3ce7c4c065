// SharedLinks are this rank's connections to other ranks, which several groups use at once. TcpMesh, one per group ->
// SharedLinks -> TcpPeer -> connections.
//
// Data travel in blocks of one group each, and each group has as much credit with a peer as the peer has memory for it:
// so the thread that reads a connection can receive all data, keeps those of other groups for them, and no group that
// nobody reads holds up another. Data that a group reads itself go straight to their destination.
// Of the threads that wait, one sleeps in epoll for all; each of the others sleeps at a bell. Bytes of a connection
// that a sleeper waits for are received at once, by the thread that sees them arrive, and the sleeper is woken; other
// bytes remain in the connection. So: data that a sleeping group waits for are never left in a connection.
//
// Thread-safe; the calls of one group come from one thread at a time, except wake() and abort(). Only sleep() blocks.
#pragma once

#include <sys/epoll.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/transport/group_links.h"
#include "lockstep/comm/transport/tcp_links.h"
#include "lockstep/comm/transport/tcp_peer.h"

namespace lockstep::internal {

class SharedLinks final : private BlockObserver {
 public:
  using Step = TcpStreams::Step;
  using Interests = std::span<const Mesh::Interest>;

  SharedLinks(int rank, std::vector<TcpLink> links, const TcpMeshSettings& settings);

  int connections() const { return connections_; }
  Checksums checksums() const { return checksums_; }
  const std::string& name(int peer) const { return peers_[static_cast<std::size_t>(peer)].name; }
  // Whether there are connections for data, too.
  bool has_data_with(int peer) const { return peers_[static_cast<std::size_t>(peer)].streams.has_connections(); }

  // Opens a group of connected ranks, of which `rank` is this one; data that its peers have sent already are kept.
  // Error{invalid_argument} if there is, or was, a group of that id.
  GroupLinks& open(GroupId id, int rank, const std::vector<int>& connected, const std::vector<std::string>& names);
  void close(GroupLinks& group) noexcept;  // says goodbye

  // As TcpStreams'. Damage ends all groups with that peer. A group that was aborted receives nothing.
  Step send(GroupLinks& group, GroupStream& stream, ByteSpan data);
  Step receive(GroupLinks& group, GroupStream& stream, MutableByteSpan space);
  void abandon(GroupLinks& group, GroupStream& stream);
  void ring_bell(const GroupLinks& group, const GroupStream& stream);

  bool is_ready(const GroupLinks& group, Interests interests);
  // Sleeps until something arrives for the group, at most this long. May return early.
  void sleep(GroupLinks& group, Interests interests, Duration most);
  // Takes note of arrivals, without waiting; of control messages in any case.
  void look(GroupLinks& group);
  void look_at_control();
  void wake(GroupLinks& group) noexcept;

  // The first error of a group wins. Never blocks.
  void abort(GroupLinks& group, const Error& error) noexcept;
  Error reason(const GroupLinks& group);
  // The next rank of the group whose death is not reported.
  std::optional<int> take_death(GroupLinks& group);
  std::string why_dead(const GroupStream& stream);

 private:
  TcpPeer& peer(int number) { return peers_[static_cast<std::size_t>(number)]; }
  GroupLinks* find(GroupId id);
  GroupStream& stream_of(GroupLinks& group, int peer);
  void watch_all(const std::vector<TcpLink>& links);
  void watch(int fd, std::uint32_t events, std::uint64_t id);

  bool has_ready(const GroupLinks& group, Interests interests);
  void lead(GroupLinks& group, Duration most, std::unique_lock<std::mutex>& lock);
  void follow(GroupLinks& group, Duration most, std::unique_lock<std::mutex>& lock);
  void take(std::span<const epoll_event> events, const GroupLinks& me, bool is_leader);
  void receive_for_sleepers(int from, const GroupLinks& me);
  void notify(GroupLinks& group) noexcept;
  void send_control(int to, const Bytes& message) noexcept;

  void read_control(int from);
  void take_control(int from, ByteView bytes);
  template <class Receive>
  void guarded(int from, Receive&& receive);
  template <class Take>
  void guarded_control(int from, Take&& take);
  void receive_all(int from);
  void give_credit(const GroupLinks& group, GroupStream& stream);
  bool end(GroupLinks& group, const Error& error);
  void tell_abort(GroupLinks& group, const Error& error, const Bytes& encoded);
  // Ends the groups with a peer; `text` says why, of its and this rank's names there.
  using Text = std::function<std::string(const std::string& peer, const std::string& self)>;
  void end_all(int from, ErrorKind kind, const Text& text);
  void end_damaged(int from, const Error& damage);

  struct Sender {
    GroupLinks* group = nullptr;
    GroupStream* stream = nullptr;
  };
  Sender sender(GroupId id);  // empty if the group was closed
  void begun(GroupId group, std::size_t bytes) override;
  void flushed(GroupId group, ByteSpan data) override;
  void ended(GroupId group, std::size_t bytes) override;
  void arrived(GroupId group, ByteSpan data) override;

  const int rank_;
  const int connections_;
  const Checksums checksums_;
  const std::size_t window_;       // what a peer may send to a group beyond what that has taken
  const std::size_t credit_step_;  // how much is taken between reports to the peer
  UniqueFd epoll_;
  UniqueFd wake_;

  std::mutex mutex_;
  // State below is protected by mutex_.
  std::vector<TcpPeer> peers_;  // by number; the own one has no descriptors
  std::map<GroupId, GroupLinks> groups_;
  std::unordered_set<GroupId> closed_;
  std::vector<GroupLinks*> waiting_;
  GroupLinks* leader_ = nullptr;  // which is in epoll
  int moving_ = -1;               // the peer whose streams are used
  Sender sender_;                 // who sends
};

}  // namespace lockstep::internal
