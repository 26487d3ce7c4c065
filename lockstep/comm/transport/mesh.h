// A Mesh is this rank's set of links: one ordered stream of bytes to and from every other rank of a group.
// Algorithms between hosts are written over it. One thread at a time, except abort() and wake(), which any thread may
// call.
// The destructor says goodbye to the peers and does not wait for them; what was sent still arrives.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {

// What a rank has sent to all its peers beside the streams.
struct Announcement {
  int from = -1;
  Bytes bytes = {};
};
inline constexpr std::size_t kMaxAnnouncementBytes = 2304;

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;
  // As errors name it: "rank 2 (host b, pid 71)".
  virtual std::string peer_name(int peer) const { return "rank " + std::to_string(peer); }
  // "alive", "stopped (by SIGSTOP or the like)": of a peer whose process this rank's kernel knows; else empty.
  virtual std::string_view peer_state(int /*peer*/) const { return {}; }

  // Moves some bytes without blocking and returns how many; 0 means "not now".
  // Error{peer_lost} names the rank whose stream ended. Error{corrupt_data}, on all ranks, names the two between which
  // data was damaged, where the mesh can tell. Once the mesh is aborted, every call throws that error.
  virtual std::size_t send_some(int peer, ByteSpan data) = 0;
  virtual std::size_t recv_some(int peer, MutableByteSpan data) = 0;

  // Whether bytes can go to the peer at once. If not, send_some() and wait() make a connection.
  virtual bool is_connected(int /*peer*/) const { return true; }
  virtual bool connects_when_needed() const { return false; }

  struct Interest {
    int peer = -1;
    bool readable = false;
    bool writable = false;
    // Whether this rank waits for that one, not only for what it may send: if they have no connection, one is made.
    bool is_awaited = true;
  };
  // Blocks until one of the interests is ready, or throws Error{timeout, peer_lost}. May wake early. A peer
  // that died is reported once, even if it is not among the interests; one that said goodbye is not. Without interests
  // it returns at once, having noticed what happened meanwhile.
  virtual void wait(std::span<const Interest> interests, Deadline deadline) = 0;
  // The present or the next wait() with interests returns early.
  virtual void wake() noexcept = 0;

  // Sends up to kMaxAnnouncementBytes to all peers, beside the streams. A peer that does not read receives the last of
  // several announcements. Never blocks.
  virtual void announce(ByteView bytes) noexcept = 0;
  // An announcement that has arrived, each once; wait() with interests returns while there is one. Works after an
  // abort, too.
  virtual std::optional<Announcement> take_announcement() = 0;

  // Tells all ranks of the mesh to stop with this error (kind, peer and text travel); the first one wins. Never
  // blocks.
  virtual void abort(const Error& error) noexcept = 0;
};

}  // namespace lockstep::internal
