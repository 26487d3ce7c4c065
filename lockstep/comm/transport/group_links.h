// GroupLinks is one group over connections that groups share, and GroupStream its stream to and from one of its ranks.
// SharedLinks -> GroupLinks; TcpPeer -> GroupStream. The lock of a stream's TcpPeer protects everything in the stream
// that is neither const nor atomic.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/arena_layout.h"
#include "lockstep/comm/transport/byte_queue.h"
#include "lockstep/comm/transport/checked_stream.h"
#include "lockstep/comm/transport/flow_window.h"

namespace lockstep::internal {

struct GroupStream;

// One thread calls for the group; functions here may be called by any.
struct GroupLinks {
  // wake_fd: the event that wakes the leader; see SharedLinks. Borrowed.
  GroupLinks(GroupId number, int own_rank, std::string own_name, int wake)
      : id(number), rank(own_rank), name(std::move(own_name)), wake_fd(wake) {}

  // The first error wins: false if the group has ended already. `message` is for the other ranks.
  bool end(const Error& error, Bytes message);
  Error why();
  Bytes aborted_message();  // for the other ranks; empty if it has not ended
  // The present or the next sleep of the group's thread returns early.
  void notify() noexcept;
  // The last announcement of each rank that has made one, as messages.
  std::vector<Bytes> announced();
  // Of this rank. Returns the message for the others.
  Bytes announce(ByteView bytes);
  // Of another rank, as it arrives, from it or from one that passes it on. Error{corrupt_data}.
  void note_announcement(ByteView body, int from);
  struct Heard {
    int rank;
    Bytes bytes;
    Bytes message;  // to pass it on
  };
  std::optional<Heard> take_announcement();
  int rank_of(int peer) const;  // -1: the peer does not belong to the group

  const GroupId id;
  const int rank;  // of this process
  const std::string name;
  const int wake_fd;
  // Constant once the group is attached to its peers.
  std::vector<int> peers;             // by rank of the group: the number among the connections
  std::vector<GroupStream*> by_rank;  // null for this rank; for the group's thread
  Bytes bell_message;

  std::atomic<bool> is_aborted{false};
  std::atomic<int> unreported{0};     // deaths
  std::atomic<int> announcements{0};  // that are not taken

  // Of the thread that sleeps.
  std::atomic<bool> has_news{false};
  std::atomic<bool> is_leading{false};
  arena::Doorbell bell{};

  std::mutex mutex;
  // State below is protected by mutex, and constant once is_aborted.
  std::optional<Error> reason;
  Bytes abort_message;

  // Protected by mutex, and not constant. The last announcement of each rank.
  struct Announced {
    std::uint32_t number = 0;
    Bytes bytes = {};
    bool is_new = false;
  };
  std::map<int, Announced> announced_by;
};

// What a call has moved to or from a stream.
struct StreamStep {
  std::size_t bytes = 0;     // 0: "not now"
  bool is_blocked = false;   // the connection whose turn it is has just said so, or there is no credit
  std::string failure = {};  // why that connection is over; empty: it is not
};

struct GroupStream {
  GroupStream(GroupId group_id, int connected) : id(group_id), peer(connected) {}

  //   early    the peer was faster: what it sends is kept
  //   open
  //   closed   what the peer still sends is dropped, until it is over
  enum class Phase : std::uint8_t { early, open, closed };

  const GroupId id;
  const int peer;  // its number among the connections
  Phase phase = Phase::early;
  std::string name;
  std::shared_ptr<GroupLinks> group;  // while open
  std::optional<Bytes> early_abort;
  std::vector<Bytes> early_announcements;
  bool has_told_abort = false;
  std::atomic<bool> is_left{false};  // the peer has left the group
  std::atomic<bool> is_dead{false};
  bool is_reported = false;  // its death; for the group's thread

  // Out: the peer's window; bytes that may be sent before the peer has taken others; bytes of blocks that were sent,
  // and begun; and how many of the block under way other groups have sent, in whose way it was.
  std::size_t peer_window = kFirstWindow;
  std::size_t credit = kFirstWindow;
  bool has_wished = false;  // for a larger window, since the last credit
  std::uint64_t sent = 0;
  std::uint64_t begun = 0;
  std::size_t flushed = 0;
  // In: what the peer may send beyond what the group has taken; bytes that have arrived, those of them taken, and those
  // of these that the peer knows of. Data that arrived while another group received wait here.
  std::size_t window = kFirstWindow;
  Bytes credit_message;  // of credit_step() bytes
  Bytes window_message;  // the last one about windows; keeps its memory
  std::uint64_t received = 0;
  std::uint64_t taken = 0;
  std::uint64_t credited = 0;
  ByteQueue arrived;
  // Once the peer has left: where its data end, and where they may end if a block was under way.
  std::uint64_t ends_at = 0;
  std::uint64_t over_at = 0;

  // Of the group's thread, if it sleeps.
  bool awaits_data = false;
  bool awaits_room = false;

  std::size_t credit_step() const { return window / 4; }
  bool has_gone() const { return is_left || is_dead; }
  bool has_ended() const { return is_left && received >= ends_at; }
  bool is_over() const { return is_left && received >= over_at; }
};

}  // namespace lockstep::internal
