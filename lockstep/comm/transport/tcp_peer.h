// A TcpPeer is everything between this rank and one other: a connection for control, and connections for data, which
// are one ordered stream each way that groups share; each is there from the start, or adopted once it is made. Blocks
// are dealt out to the connections for data in turn, kStripeBytes at a time. SharedLinks -> TcpPeer -> connections.
//
// Its lock protects the connections and the streams of all groups with this peer; nothing else is locked meanwhile but
// a group's own lock and OpenGroups. Functions need the lock unless they say otherwise. Nothing here blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/transport/control_connection.h"
#include "lockstep/comm/transport/data_connection.h"
#include "lockstep/comm/transport/group_links.h"
#include "lockstep/comm/transport/open_groups.h"
#include "lockstep/comm/transport/tcp_links.h"

namespace lockstep::internal {

inline constexpr std::size_t kStripeBytes = std::size_t{128} << 10;

class TcpPeer {
 public:
  using Step = StreamStep;

  // self: this rank's name. open_groups: borrowed.
  TcpPeer(int number, std::string name, std::string self, const TcpMeshSettings& settings, OpenGroups& open_groups);

  // Any thread may ask without the lock.
  int number() const { return number_; }
  const std::string& name() const { return name_; }
  bool has_control() const { return has_control_; }
  bool has_data() const { return has_data_; }

  std::mutex mutex;

  // A connection that was made: 0 for control, which comes first, else 1 + the index of one for data. Tells what the
  // peer has missed.
  void adopt(std::size_t connection, UniqueFd fd);
  // The peer cannot be reached: it has died or left. Only calls that need it fail.
  void fail(const std::string& why) noexcept;

  // A group is opened in two steps, so that it knows all its streams before one of them changes. Null if the id is in
  // use here, or the peer has not closed an earlier group of that id.
  GroupStream* reserve(GroupId id);
  void attach(GroupStream& stream, const std::shared_ptr<GroupLinks>& group, const std::string& name);
  void detach(GroupStream& stream);  // says goodbye; the stream may be gone then
  void refuse(GroupId id);           // the peer does not belong to a group that is opened here
  std::size_t streams() const { return streams_.size(); }

  Step send(GroupStream& stream, ByteSpan data);
  Step receive(GroupStream& stream, MutableByteSpan space);
  bool is_ready(const GroupStream& stream, bool readable, bool writable) const;
  // The group's thread sleeps until that, or awakes.
  void enlist(GroupStream& stream, bool readable, bool writable);
  void delist(GroupStream& stream);

  // Without the lock: notes what epoll has reported, edge-triggered.
  void note_events(std::size_t connection, std::uint32_t events);
  bool has_events() const { return has_events_; }
  // Handles them. Data that other sleepers than `me` await are received.
  void take_events(const GroupLinks* me) noexcept;
  void read_control() noexcept;
  void send_control(ByteView message) noexcept { control_.send(message); }
  void tell_abort(const GroupLinks& group) noexcept;

  const std::string& why_dead() const { return control_.why_dead(); }
  // Groups that have ended since the last call: the rest of their ranks are to be told, without the lock.
  std::vector<std::shared_ptr<GroupLinks>> take_ended() { return std::exchange(ended_, {}); }

 private:
  std::size_t turn(std::uint64_t position) const { return position / kStripeBytes % connections_.size(); }
  // How many of `bytes` are for the connection whose turn it is.
  std::size_t limit(std::uint64_t position, std::size_t bytes) const;
  bool is_readable() const;
  bool is_writable() const { return has_data() && connections_[turn(sent_)].writable; }
  // Whether the stream is to go on with a block.
  bool is_within_block_of(const GroupStream& stream) const;
  Step send_own(DataConnection& connection, GroupStream& stream, ByteSpan data);
  Step flush(DataConnection& connection);
  // Of one block, for the stream, if there is one; what is of other groups is kept for them.
  Step receive_for(GroupStream* stream, MutableByteSpan space);
  void keep(GroupId id, ByteSpan data);
  void give_credit(GroupStream& stream);
  void wish_for_room(GroupStream& stream) noexcept;
  void widen(GroupStream& stream, std::size_t wanted);
  void receive_for_sleepers(const GroupLinks* me) noexcept;

  GroupStream* find(GroupId id);
  GroupStream& stream_of(GroupId id, const char* what);
  void forget_if_over(GroupStream& stream);
  void tell_missed() noexcept;
  void take_message(ByteView bytes);
  void take_abort(GroupStream& stream, const ControlMessage& message, ByteView bytes);
  void take_announcement(GroupStream& stream, ByteView bytes);
  void take_death() noexcept;
  void end(const std::shared_ptr<GroupLinks>& group, const Error& error);
  // Ends the groups with this peer; `text` says why, of its and this rank's names there.
  using Text = std::function<std::string(const std::string& peer, const std::string& self)>;
  void end_all(ErrorKind kind, const Text& text) noexcept;
  void end_damaged(const Error& damage) noexcept;
  // Errors of their calls end all groups.
  template <class Receive>
  void guarded(Receive&& receive) noexcept;
  template <class Take>
  void guarded_control(Take&& take) noexcept;

  const int number_;
  const std::string name_;  // "rank 2 (host n1, pid 811)"
  const std::string self_;
  OpenGroups& open_groups_;
  ControlConnection control_;
  std::vector<DataConnection> connections_;         // for data
  std::vector<std::atomic<std::uint32_t>> events_;  // by connection
  std::atomic<bool> has_control_{false};
  std::atomic<bool> has_data_{false};  // all of them
  std::atomic<bool> has_events_{false};

  // How far the streams are.
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::map<GroupId, GroupStream> streams_;
  std::vector<GroupStream*> sleepers_;
  // Groups that were closed here while there was no connection over which to say so: the last kMostUntold. A peer that
  // uses an older one waits until its deadline.
  struct Untold {
    GroupId id;
    Bytes abort_message;  // empty if it was not aborted
  };
  std::deque<Untold> untold_;
  std::vector<std::shared_ptr<GroupLinks>> ended_;
  std::string damaged_;  // why its data can no longer be read; else empty
};

}  // namespace lockstep::internal
