// A StoreServer shares one key-value map with the processes of a job over TCP. launcher or rank 0 -> StoreServer <-
// TcpStore. One thread serves all connections and never waits for one of them. Thread-safe. Every connection begins
// with the handshake of net/handshake.h on Channel::store; a client without the job's token is closed within 3 s, and
// logged (at most one line a second). No client can end the server. If the system fails (no memory, no events), the
// server closes the connections that it cannot serve, so that no client waits for an answer that never comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/handshake.h"

namespace lockstep::internal {

struct StoreServerLimits {
  // Authenticated. To admit one more, the connection that has been idle longest is closed, and its client connects
  // again when needed; if all are in use, the new one is refused with the limit in the text.
  std::size_t connections = 4096;
  std::size_t half_open = 64;                        // still in the handshake; the oldest is dropped to admit the next
  std::size_t output_bytes = std::size_t{16} << 20;  // queued to one connection that does not read; then it is dropped
  Duration handshake = kHandshakeTimeout;
};

struct StoreServerOptions {
  Token token = {};
  std::string job_id = {};
  // The server's identity, and the clients that it admits; the default admits all that hold the token.
  PeerIdentity identity = local_identity(-1, 0, 0);
  Admission admission = {};
  StoreServerLimits limits = {};
};

// Admits clients of this generation of the job only: processes left from an earlier one must not write into this one's
// keys.
Admission admit_generation(std::uint64_t generation);

class StoreServer {
 public:
  // Listens on exactly this endpoint when it returns; port 0 takes a free one. Errors as Listener::bind().
  StoreServer(const Endpoint& endpoint, StoreServerOptions options);
  // Closes all connections. Clients that wait get Error{peer_lost}. In a forked child it does nothing.
  ~StoreServer();

  // The number that the next last will gets; one that is left again keeps its number.
  std::uint64_t next_will();
  // Blocks until no connected client still has a last will of a number below `before`; false at the deadline. In a
  // forked child it does nothing.
  bool wait_for_wills(Deadline deadline, std::uint64_t before = ~std::uint64_t{0});

  SocketAddress address() const;
  std::uint16_t port() const { return address().port(); }

 private:
  class Loop;
  const ForkGuard fork_guard_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::internal
