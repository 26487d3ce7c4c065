// The data connections to one peer as one ordered stream each way: bytes are dealt out to the connections in turn,
// kStripeBytes at a time. TcpMesh -> TcpStreams -> connections. One thread at a time; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/transport/checked_stream.h"
#include "lockstep/transport/tcp_mesh.h"

namespace lockstep {

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

  Step send(ByteSpan data);
  // Error{corrupt_data} if data was damaged on its way; then there are no more calls.
  Step receive(MutableByteSpan space);

  // Whether to try, as far as is known.
  bool is_readable() const;
  bool is_writable() const { return ready_[turn(sent_)].writable; }
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

  std::vector<UniqueFd> connections_;
  // Of each connection.
  std::vector<Readiness> ready_;
  std::vector<CheckedSender> senders_;      // empty without checksums
  std::vector<CheckedReceiver> receivers_;  // the same
  // How far the streams have come.
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace lockstep
