// GroupLinks is what one group has over connections that groups share: a stream to and from each of its ranks.
// SharedLinks -> GroupLinks. Values; SharedLinks' mutex protects what is not atomic.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/arena_layout.h"
#include "lockstep/comm/transport/checked_stream.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

// Bytes in the order in which they came.
class ByteQueue {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - begin_; }
  void add(ByteSpan bytes);
  std::size_t take(MutableByteSpan space);
  void clear();

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;
};

// With one peer.
struct GroupStream {
  GroupStream(int connected, std::size_t window) : peer(connected), credit(window) {}

  const int peer;  // its number among the connections
  std::string name;
  std::atomic<bool> is_left{false};  // it has left the group
  std::atomic<bool> is_dead{false};
  bool is_reported = false;  // its death

  // Out: bytes that may be sent before the peer has taken others, bytes of whole blocks that were sent, and those that
  // were sent by a call of another group, in whose way they were.
  std::size_t credit;
  std::uint64_t sent = 0;
  std::vector<std::byte> flushed;
  bool is_abandoned = false;  // the block under way: its group does not show the rest of it
  // In: bytes that have arrived, those of them taken, and those of these that the peer knows of. Data that arrived
  // while another group received wait here.
  std::uint64_t received = 0;
  std::uint64_t taken = 0;
  std::uint64_t credited = 0;
  ByteQueue arrived;
  std::uint64_t ends_at = 0;  // once it has left

  bool is_over() const { return is_left || is_dead; }
  bool has_ended() const { return is_left && received >= ends_at; }
};

struct GroupLinks {
  explicit GroupLinks(GroupId number) : id(number) {}

  const GroupId id;
  bool is_open = false;  // here; else peers were faster
  int rank = -1;         // of this process
  std::string name;      // the same
  // Messages to peers, made once.
  Bytes bell_message;
  Bytes credit_message;
  std::map<int, GroupStream> streams;                // by the peer's number among the connections
  std::vector<GroupStream*> by_rank;                 // of the group; null for this rank
  std::optional<std::pair<int, Bytes>> early_abort;  // of the first peer that gave up before it was open here

  std::atomic<bool> is_aborted{false};
  std::optional<Error> reason;
  std::atomic<bool> has_news{false};  // for the present or the next wait
  std::atomic<int> unreported{0};     // deaths

  // Of the thread that waits.
  std::span<const Mesh::Interest> interests;
  arena::Doorbell bell{};

  int rank_of(int peer) const;  // -1: it is not of the group
  bool awaits(int peer, bool Mesh::Interest::*what) const;
};

}  // namespace lockstep::internal
