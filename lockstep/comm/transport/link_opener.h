// A LinkOpener makes the connections of a TCP mesh that were not made at its start: those that a group of this rank
// needs, and those that a peer opens. SharedLinks -> LinkOpener -> connect, listen, handshake -> SharedLinks.
//
// It has a separate thread, so that a rank that computes can still be connected to. If two ranks open the same
// connection at once, the one that the higher rank opens is used. A rank whose host refuses connections for kRefusedFor
// has died or left. So has one of another host that cannot be reached for twice the host timeout, unless there is a
// connection for control, which ends when the host is lost. All others are waited for, whether they accept and then say
// nothing, or cannot accept: they are stopped, or busy, and a call that needs one has a deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/rate_limited_log.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/acceptor.h"
#include "lockstep/comm/transport/tcp_links.h"
#include "lockstep/comm/transport/tcp_mesh.h"

namespace lockstep::internal {

class LinkOpener {
 public:
  enum class Part : std::uint8_t { control, data };  // data need control, too
  // Called by the opener's thread.
  struct Report {
    std::function<void(int peer, std::uint32_t connection, UniqueFd fd)> opened;  // numbered as LinkClaim does
    std::function<void(int peer, const std::string& why)> failed;                 // for good
  };

  // links: what there is already. Errors: internal, without descriptors or threads.
  LinkOpener(const TcpMeshSettings& settings, const std::vector<TcpLink>& links, std::vector<PeerAddress> addresses,
             std::vector<Listener> listeners, Report report);
  ~LinkOpener();
  LinkOpener(const LinkOpener&) = delete;
  LinkOpener& operator=(const LinkOpener&) = delete;

  // Any thread; cheap if it was wanted before. Never blocks.
  void want(int peer, Part part) noexcept;

 private:
  //   outgoing, incoming   it is being opened by this rank, by the peer
  //   made, accepted       it was
  enum class Way : std::uint8_t { none, outgoing, incoming, made, accepted };
  struct Pair {
    Way control = Way::none;
    Way data = Way::none;
    std::vector<bool> arrived;  // of the connections for data
    bool is_lost = false;
  };
  struct Attempt {
    int peer;
    std::uint32_t connection;
    UniqueFd fd = {};
    bool is_connected = false;
    bool is_superfluous = false;  // the peer was faster; ends in good order, for the peer's log
    bool is_refused = false;      // by the peer's host, the last time
    std::unique_ptr<Handshake> handshake = {};
    TimePoint since = {};  // of this connection
    TimePoint due = {};    // of the next one
    Duration pause = {};
    TimePoint refused_since = TimePoint::max();
    TimePoint unreached_since = TimePoint::max();
  };
  using Attempts = std::list<Attempt>;

  Pair& pair(int peer) { return pairs_[static_cast<std::size_t>(peer)]; }
  static bool is_open(Way way) { return way == Way::made || way == Way::accepted; }
  static Way& way(Pair& pair, std::uint32_t connection) { return connection == 0 ? pair.control : pair.data; }
  void run() noexcept;
  void sleep();
  bool take_requests();  // false at the end
  void accept();
  void adopt_begun();
  void adopt_rest() noexcept;
  template <class Step>
  bool guarded(Step&& step) noexcept;
  std::optional<Refusal> admit(const PeerIdentity& peer);
  void open_wanted(int peer);
  void advance(Attempts::iterator attempt);
  void connect(Attempt& attempt);
  bool finish_connect(Attempt& attempt);
  [[noreturn]] static void fail_to_connect(Attempt& attempt, int error);
  bool is_ended_by_silence(const Attempt& attempt);
  void try_again(Attempt& attempt, const std::string& why);
  static void pause(Attempt& attempt);
  void opened(int peer, std::uint32_t connection, UniqueFd fd);
  void give_up(int peer, const std::string& why);
  void drop_attempts(int peer, bool for_data);
  void step(Attempt& attempt);

  const TcpMeshSettings settings_;
  const std::vector<PeerAddress> addresses_;
  const Report report_;
  const ForkGuard fork_guard_;
  Acceptor acceptor_;
  RateLimitedLog warnings_;
  UniqueFd wake_;
  std::vector<std::atomic<std::uint8_t>> wanted_;  // bits of Part, by peer

  std::mutex mutex_;
  std::vector<int> requests_;  // protected by mutex_
  bool is_ending_ = false;     // protected by mutex_

  // Of the thread.
  std::vector<Pair> pairs_;
  Attempts attempts_;
  std::vector<Acceptor::Arrival> begun_;  // connections for control whose openers have yet to say that they have them
  std::thread thread_;
};

}  // namespace lockstep::internal
