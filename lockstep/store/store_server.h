// A StoreServer shares one key-value map with the processes of a job over TCP. launcher or rank 0 -> StoreServer <-
// TcpStore. One thread serves all connections and never waits for one of them. Thread-safe. Every connection begins
// with the handshake of net/handshake.h on Channel::store; nobody without the job's token gets further, or stays longer
// than 2 s. It logs refused strangers (at most one line a second, and never waits for who reads it) and never ends
// because of a client. If the system fails it (no memory, no events), it closes what it cannot serve, so that nobody
// waits for an answer in vain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/net/address.h"
#include "lockstep/net/handshake.h"

namespace lockstep {

struct StoreServerLimits {
  // Authenticated. For the next one, that which has been idle longest is closed, and its client connects anew when it
  // needs it; if all are in use, the next is refused with the limit in the text.
  std::size_t connections = 4096;
  std::size_t half_open = 64;                        // still in the handshake; the oldest is dropped for the next
  std::size_t output_bytes = std::size_t{16} << 20;  // queued to one connection that does not read; then it is dropped
  Duration handshake = kHandshakeTimeout;
};

struct StoreServerOptions {
  Token token = {};
  std::string job_id = {};
  // Who the server says it is, and whom it takes; the default takes all that hold the token.
  PeerIdentity claims = local_identity(-1, 0, 0);
  Admission admission = {};
  StoreServerLimits limits = {};
};

// Takes clients of this generation of the job: what is left of an earlier one must not write between the ranks of now.
Admission admit_generation(std::uint64_t generation);

class StoreServer {
 public:
  // Listens on exactly this endpoint when it returns; port 0 takes a free one. Errors as Listener::bind().
  StoreServer(const Endpoint& endpoint, StoreServerOptions options);
  // Closes all connections. Clients that wait get Error{peer_lost}. In a forked child it does nothing.
  ~StoreServer();

  // The number that the next last will gets; one that is left again keeps its number.
  std::uint64_t next_will();
  // Blocks until no connected client has a last will of a number below `before` any more; false at the deadline.
  bool wait_for_wills(Deadline deadline, std::uint64_t before = ~std::uint64_t{0});

  SocketAddress address() const;
  std::uint16_t port() const { return address().port(); }

 private:
  class Loop;
  const ForkGuard fork_guard_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep
