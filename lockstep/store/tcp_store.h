// A TcpStore is a client of a StoreServer. Store calls -> frames -> StoreServer.
// Thread-safe: every call has a connection of its own while it runs, taken from a pool or opened, so a blocking get()
// holds up nobody. A call that fails or times out closes its connection. A frozen server holds no caller longer than
// its deadline and 0.1 s. A call whose connection breaks is sent again, and the server does not do it twice. Errors
// besides those of Store: peer_lost once the server was reached and is gone; those of the handshake.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/net/address.h"
#include "lockstep/net/handshake.h"
#include "lockstep/store/store.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep {

class TcpStore final : public Store {
 public:
  // Connects on first use. Until the server was reached once, a refused connection is tried again until the deadline,
  // because the server may not be up yet. settings.channel is not used.
  TcpStore(Endpoint server, HandshakeSettings settings);

  // Connects, if no call has yet, and returns the numeric address of this host from which the server was reached.
  std::string connect(Deadline deadline);

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;

 private:
  StoreRequest request(StoreOp op, std::vector<std::string> keys);
  StoreReply call(const StoreRequest& request, Deadline deadline);
  StoreReply exchange(int fd, const StoreRequest& request, Deadline deadline);
  UniqueFd take_connection(Deadline deadline);
  UniqueFd open_connection(Deadline deadline);
  void give_back(UniqueFd fd);
  Error explain(const Error& error, const StoreRequest& request, Duration elapsed) const;

  Endpoint server_;
  HandshakeSettings settings_;
  std::uint64_t client_;
  std::atomic<std::uint64_t> next_request_{1};
  std::atomic<bool> reached_{false};
  std::mutex mutex_;
  std::vector<UniqueFd> idle_;
};

}  // namespace lockstep
