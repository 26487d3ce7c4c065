// A TcpStore is a client of a StoreServer. Store calls -> frames -> StoreServer. Thread-safe: every call has its
// own connection while it runs, taken from a pool or opened, so a blocking get() delays no other call. A call
// that fails or times out closes its connection. A frozen server delays a caller until its deadline and 0.1 s at most.
// A call whose connection breaks or is damaged connects again and is repeated until its deadline, and the server
// executes it once only; a get() or wait() goes on waiting. Last wills have their own connection; if it breaks,
// the next call opens it again. Errors besides those of Store: peer_lost at once if the server was reached before and
// its host now refuses connections; those of the handshake; internal if a change was repeated so late that the server
// no longer knows whether it was executed; invalid_argument in a child that was forked later.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/fork_guard.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/store/store_protocol.h"

namespace lockstep {

class TcpStore final : public Store {
 public:
  // Connects on first use. Until the server was reached once, a refused connection is tried again until the deadline,
  // because the server may not be up yet. settings.channel is not used.
  TcpStore(Endpoint server, internal::HandshakeSettings settings);

  // Connects, if no call has yet, and returns the numeric address of this host from which the server was reached.
  std::string connect(Deadline deadline);

  void set(std::string_view key, ByteView value, Deadline deadline) override;
  Bytes get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override;
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool check(const std::vector<std::string>& keys, Deadline deadline) override;
  bool remove(std::string_view key, Deadline deadline) override;
  void last_will(std::string_view key, ByteView value, Deadline deadline) override;

 private:
  // The start of a time without answers, and the attempts since.
  struct Outage {
    TimePoint since;
    int attempts = 0;
  };
  enum class Stage { connecting, connected };
  struct Will {
    Bytes value;  // empty: to be withdrawn
    bool is_sent = false;
  };
  // Numbers a request, for as long as its reply may be asked for again.
  class Number;

  internal::StoreRequest request(internal::StoreOp op, std::vector<std::string> keys);
  internal::StoreReply call(internal::StoreRequest request, Deadline deadline);
  internal::StoreReply attempt(const internal::StoreRequest& request, Deadline deadline, Stage& stage);
  internal::StoreReply exchange(int fd, const internal::StoreRequest& request, Deadline deadline);
  internal::UniqueFd take_connection(Deadline deadline, Stage& stage);
  internal::UniqueFd open_connection(Deadline deadline, Stage& stage);
  void give_back(internal::UniqueFd fd);
  void note_failure(TimePoint since);
  Error explain(const Error& error, const internal::StoreRequest& request, Duration elapsed);
  std::string host();
  void renew_wills(Deadline deadline) noexcept;
  void send_wills(Deadline deadline);
  void send_will(const std::string& key, Will& will, Deadline deadline);

  // A child would number its requests as its parent does, and get the parent's replies.
  const internal::ForkGuard fork_guard_;
  Endpoint server_;
  internal::HandshakeSettings settings_;
  std::uint64_t client_;
  std::atomic<bool> reached_{false};
  std::mutex mutex_;  // guards all below
  std::vector<internal::UniqueFd> idle_;
  std::uint64_t next_request_ = 1;
  std::set<std::uint64_t> pending_;  // changing requests
  std::optional<Outage> outage_;
  std::optional<internal::PeerIdentity> host_;  // of the server

  std::mutex wills_mutex_;  // held while they are sent
  std::map<std::string, Will> wills_;
  internal::UniqueFd wills_fd_;  // whose end tells the server that this process has ended
};

}  // namespace lockstep
