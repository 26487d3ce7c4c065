// The data connections to one peer as one ordered stream each way: blocks are dealt out to the connections in turn,
// kStripeBytes at a time. Groups share it; each sees the bytes of its own blocks. SharedLinks -> TcpStreams ->
// connections. One thread at a time; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/transport/checked_stream.h"

namespace lockstep::internal {

inline constexpr std::size_t kStripeBytes = std::size_t{128} << 10;

// What becomes of blocks while the streams are used, those of other groups among them.
class BlockObserver {
 public:
  virtual void begun(GroupId group, std::size_t bytes) = 0;  // a block of this many bytes is being sent
  virtual void flushed(GroupId group,
                       ByteSpan data) = 0;  // these bytes of it were sent, and not by a call of its group
  virtual void ended(GroupId group, std::size_t bytes) = 0;  // all of it has been sent
  virtual void arrived(GroupId group, ByteSpan data) = 0;    // for another group than the one that receives

 protected:
  ~BlockObserver() = default;
};

class TcpStreams {
 public:
  // What a call has done.
  struct Step {
    std::size_t bytes = 0;     // 0: "not now"
    bool is_blocked = false;   // the connection whose turn it is has just said so
    std::string failure = {};  // why that connection is over; empty: it is not
  };

  TcpStreams() = default;
  TcpStreams(std::vector<UniqueFd> connections, Checksums checksums);

  bool has_connections() const { return !connections_.empty(); }
  Step send(GroupId group, ByteSpan data, BlockObserver& observer);
  // Goes on with a block of the group whose rest it does not show; no bytes.
  Step finish(GroupId group, BlockObserver& observer);
  // Whether the group has to go on with a block.
  bool is_within_block_of(GroupId group) const;
  // Error{corrupt_data} if data was damaged on its way; then there are no more calls.
  Step receive(GroupId group, MutableByteSpan space, BlockObserver& observer);
  // Receives all that is there for whatever group.
  Step receive_all(BlockObserver& observer);

  // Whether to try, as far as is known.
  bool is_readable() const;
  bool is_writable() const { return has_connections() && ready_[turn(sent_)].writable; }
  // What epoll has told of a connection, edge-triggered.
  void note_events(std::size_t connection, std::uint32_t events);

 private:
  // Events set them, "not now" clears them.
  struct Readiness {
    bool readable = true;
    bool writable = true;
  };

  std::size_t turn(std::uint64_t position) const { return position / kStripeBytes % connections_.size(); }
  // How many of `bytes` are for the connection whose turn it is.
  std::size_t limit(std::uint64_t position, std::size_t bytes) const;
  template <class Call>
  Step move(std::uint64_t& position, bool& ready, Call&& call);
  Step receive_next(GroupId group, MutableByteSpan space, ByteSpan& elsewhere, GroupId& of);

  std::vector<UniqueFd> connections_;
  // Of each connection.
  std::vector<Readiness> ready_;
  std::vector<CheckedSender> senders_;
  std::vector<CheckedReceiver> receivers_;
  // How far the streams are.
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace lockstep::internal
