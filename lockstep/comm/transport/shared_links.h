// SharedLinks are this rank's connections to other ranks, which several groups use at once. TcpMesh, one per group ->
// SharedLinks -> TcpPeer, one per rank -> connections.
//
// Data travel in blocks of one group each, and each group has as much credit with a peer as the peer has memory for it:
// so the thread that reads a connection can receive all data, keeps those of other groups for them, and no group that
// nobody reads holds up another. Data that a group reads itself go straight to their destination.
//
// Of the threads that wait, one, the leader, sleeps in epoll for all; each of the others sleeps at a bell. Bytes of a
// connection that a sleeper waits for are received at once, by the thread that sees them arrive, and the sleeper is
// woken; other bytes remain in the connection. So: data that a sleeping group waits for are never left in a connection.
//
// Locks: each peer has one, and a thread holds at most one of them. Within it, it may take one of these, in which
// nothing else is locked: a group's, OpenGroups', followers_mutex_. A thread that only has events for a peer never
// waits for its lock: who holds it takes the events before it goes. So groups wait for each other only where both use
// the same peer, and no longer than a system call that does not block takes, or the checksum of a block.
//
// Thread-safe; the calls of one group come from one thread at a time, except wake() and abort(). Only sleep() blocks.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/comm/transport/group_links.h"
#include "lockstep/comm/transport/link_opener.h"
#include "lockstep/comm/transport/mesh.h"
#include "lockstep/comm/transport/tcp_links.h"
#include "lockstep/comm/transport/tcp_peer.h"

namespace lockstep::internal {

class SharedLinks final {
 public:
  using Step = TcpPeer::Step;
  using Interests = std::span<const Mesh::Interest>;

  SharedLinks(int rank, TcpLinks made, const TcpMeshSettings& settings);

  int connections() const { return connections_; }
  Checksums checksums() const { return checksums_; }
  bool is_complete() const { return is_complete_; }
  const std::string& name(int peer) const { return this->peer(peer).name(); }
  // The sockets between this rank and its peers.
  std::size_t sockets() const;
  // How many groups are known with a peer: open ones, ones that the peer opened first, and ones that it has not closed.
  std::size_t groups_with(int peer);

  // Opens a group of connected ranks, of which `rank` is this one; data that its peers have sent already are kept.
  // Error{invalid_argument} if there is a group of that id, or one that a peer has not closed.
  std::shared_ptr<GroupLinks> open(GroupId id, int rank, const std::vector<int>& connected,
                                   const std::vector<std::string>& names);
  void close(GroupLinks& group) noexcept;  // says goodbye

  // As TcpPeer's. Damage ends all groups with that peer. A group that was aborted receives nothing.
  Step send(GroupStream& stream, ByteSpan data);
  Step receive(GroupStream& stream, MutableByteSpan space);
  void ring_bell(const GroupLinks& group, const GroupStream& stream);
  bool has_control_with(const GroupStream& stream) const { return peer(stream.peer).has_control(); }
  bool has_data_with(const GroupStream& stream) const { return peer(stream.peer).has_data(); }
  // Has the connections made that are missing. With one for control a peer's death is noticed, and it can be woken.
  void want_control(const GroupStream& stream) { want(peer(stream.peer), LinkOpener::Part::control); }
  void want_data(const GroupStream& stream) { want(peer(stream.peer), LinkOpener::Part::data); }

  bool is_ready(const GroupLinks& group, Interests interests);
  // Sleeps until something arrives for the group, at most this long. May return early.
  void sleep(GroupLinks& group, Interests interests, Duration most);
  // Takes note of arrivals, without waiting.
  void look(GroupLinks& group);
  // Of control messages of the group's peers, also where another thread has the event for them.
  void look_at_control(const GroupLinks& group);

  void announce(GroupLinks& group, ByteView bytes) noexcept;
  std::optional<Announcement> take_announcement(GroupLinks& group);
  // The first error of a group wins. Never blocks.
  void abort(GroupLinks& group, const Error& error) noexcept;
  // The next rank of the group whose death is not reported.
  static std::optional<int> take_death(GroupLinks& group);
  std::string why_dead(const GroupStream& stream);

 private:
  using Ended = std::vector<std::shared_ptr<GroupLinks>>;

  // A peer's lock. At its end: groups that ended are told to their ranks, and events that came meanwhile are taken.
  class PeerLock {
   public:
    PeerLock(SharedLinks& links, TcpPeer& peer) : links_(links), peer_(peer), lock_(peer.mutex) {}
    ~PeerLock();

   private:
    SharedLinks& links_;
    TcpPeer& peer_;
    std::unique_lock<std::mutex> lock_;
  };

  TcpPeer& peer(int number) { return *peers_[static_cast<std::size_t>(number)]; }
  const TcpPeer& peer(int number) const { return *peers_[static_cast<std::size_t>(number)]; }
  void watch_leader();
  void watch_connection(const TcpPeer& peer, std::uint32_t connection, int fd);
  void watch(int fd, std::uint32_t events, std::uint64_t id);
  void adopt(TcpPeer& peer, std::uint32_t connection, UniqueFd fd);
  void want(const TcpPeer& peer, LinkOpener::Part part) noexcept;
  void tell_abort(const GroupLinks& group) noexcept;
  void tell_all(const GroupLinks& group, ByteView message);
  void serve(TcpPeer& peer, const GroupLinks* me) noexcept;

  // Calls use(peer, stream, interest) under the peer's lock, until it returns true.
  template <class Use>
  bool any_stream(const GroupLinks& group, Interests interests, Use&& use);
  enum class Slept : std::uint8_t { leading, following };
  Slept sleep_once(GroupLinks& group, Duration most);
  void lead(GroupLinks& group, Duration most);
  void follow(GroupLinks& group, Duration most);
  void wake_follower() noexcept;
  void take(std::span<const epoll_event> events, const GroupLinks& me);

  const int rank_;
  const int connections_;
  const Checksums checksums_;
  const bool is_complete_;  // all ranks were connected at the start
  const Neighbours neighbours_;
  UniqueFd epoll_;
  UniqueFd wake_;  // of the leader
  OpenGroups open_groups_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;  // by number; the own one has no connections

  std::atomic<GroupLinks*> leader_{nullptr};  // which is in epoll
  std::mutex followers_mutex_;
  std::vector<GroupLinks*> followers_;  // protected by followers_mutex_

  std::unique_ptr<LinkOpener> opener_;  // null if all connections were made at the start; the last, since it calls
};

}  // namespace lockstep::internal
