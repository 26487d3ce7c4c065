#include "lockstep/comm/transport/tcp_links.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/net/acceptor.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/handshake.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/link_claim.h"

namespace lockstep::internal {
namespace {

// For the last request to the store, which no rank waits for.
constexpr Duration kFarewellTimeout = std::chrono::seconds(1);
// How often a rank that waits looks for dead peers: for connections, in the store, for an answer to a connection.
constexpr Duration kLookPeriod = std::chrono::milliseconds(50);
constexpr Duration kStoreLook = std::chrono::seconds(1);
constexpr Duration kConnectLook = std::chrono::seconds(3);
constexpr Duration kAnswerLook = std::chrono::milliseconds(250);
constexpr Duration kRetryPause = std::chrono::milliseconds(5);
constexpr Duration kPatience = std::chrono::seconds(2);  // for ranks that wait to learn why others cannot connect

class Connector {
 public:
  Connector(const TcpMeshSettings& settings, Store& store, Deadline deadline)
      : settings_(settings), store_(store), deadline_(deadline), links_(static_cast<std::size_t>(settings.size)) {
    for (TcpLink& link : links_) link.data.resize(static_cast<std::size_t>(settings.connections));
    for (int peer = 0; peer < settings.size; ++peer) link(peer).who = settings.name_of(peer);
    link(settings.rank).who = to_string(local_identity(settings.rank, settings.size, settings.generation));
  }

  TcpLinks run() {
    std::vector<Listener> listeners;
    listeners.push_back(Listener::bind({settings_.address, 0}, deadline_));
    const Endpoint here = listeners.front().address().endpoint();
    Acceptor acceptor(fmt::format("group '{}'", settings_.name), std::move(listeners),
                      link_handshake(settings_, kControlLink),
                      [this](const PeerIdentity& claims) { return admit(claims); });
    try {
      store_.set(key(settings_.rank), to_string(here), deadline_);
      // Only once all have published their addresses can a rank that does not answer be blamed for it.
      await_keys("", "have not joined", "to join");
      read_addresses();
      for (int peer = 0; peer < settings_.rank; ++peer) connect(peer);
      accept_all(acceptor);
      if (is_complete()) {
        forget_address();
        await_connected(acceptor);
      } else {
        await_connected_in_store();
      }
    } catch (const Error& error) {
      const Error cause = settings_.cause_of(error);
      tell_all(error_for_peers(link(settings_.rank).who, settings_.rank, cause));
      throw cause;
    }
    TcpLinks made{std::move(links_)};
    if (has_rest()) {
      made.addresses = std::move(addresses_);
      made.listeners = std::move(acceptor).release();
    }
    return made;
  }

 private:
  TcpLink& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  bool is_complete() const { return settings_.size <= settings_.complete_up_to; }
  // How many connections with a peer are made now: for control, and to a peer that shares no memory for data.
  std::uint32_t planned(int peer) const {
    if (!is_complete()) return are_neighbours(settings_.neighbours, settings_.rank, peer, settings_.size) ? 1 : 0;
    const bool is_near = std::ranges::find(settings_.node.ranks, peer) != settings_.node.ranks.end();
    return is_near ? 1 : 1 + static_cast<std::uint32_t>(settings_.connections);
  }
  bool has_rest() const { return !is_complete() || settings_.node.ranks.size() > 1; }
  UniqueFd& connection(int rank, std::uint32_t number) {
    return number == kControlLink ? link(rank).control : link(rank).data[number - 1];
  }
  std::string key(int rank, std::string_view step = "") const {
    return fmt::format("mesh/{}/{}{}", settings_.name, step, rank);
  }

  // Of all other ranks.
  void await_keys(std::string_view step, const char* what, const char* to_what) {
    std::vector<std::string> keys;
    for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) keys.push_back(key(rank, step));
    for (int rank = 0; rank < settings_.rank; ++rank) keys.push_back(key(rank, step));
    std::vector<std::string> missing = keys;
    for (LongWait long_wait;;) {
      missing = store_.wait(missing, std::min(deadline_, Deadline::after(kStoreLook)));
      if (missing.empty()) return;
      settings_.check_alive();
      std::vector<int> ranks;
      for (int rank = 0; rank < settings_.size; ++rank) {
        if (std::ranges::find(missing, key(rank, step)) != missing.end()) ranks.push_back(rank);
      }
      if (deadline_.expired()) throw timeout(ranks, what);
      if (const auto waited = long_wait.due()) tell(*waited, ranks, to_what);
    }
  }

  void read_addresses() {
    addresses_.resize(links_.size());
    for (int peer = 0; peer < settings_.size; ++peer) {
      if (peer == settings_.rank || (peer > settings_.rank && !has_rest())) continue;
      addresses_[static_cast<std::size_t>(peer)] = {endpoint_of(peer), settings_.about(peer)};
    }
  }

  Endpoint endpoint_of(int peer) {
    const std::string told = store_.get(key(peer), deadline_);
    try {
      return with_scope_of(settings_.address, parse_endpoint(told));
    } catch (const Error& error) {
      throw_corrupt({"address for connections", peer}, error.what());
    }
  }

  void connect(int peer) {
    const Endpoint& endpoint = addresses_[static_cast<std::size_t>(peer)].endpoint;
    try {
      for (std::uint32_t number = 0; number < planned(peer); ++number) connect(peer, number, endpoint);
    } catch (const Error& error) {
      const bool is_silent = error.kind() == ErrorKind::timeout;  // it has come, so its host is not reached
      throw Error(is_silent ? ErrorKind::peer_lost : error.kind(),
                  fmt::format("group '{}': rank {} cannot connect to {} at {}: {}{}", settings_.name, settings_.rank,
                              settings_.name_of(peer), to_string(endpoint), error.what(), settings_.about(peer)),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  // One whose handshake breaks off is made again: the peer may have been too busy for it, or had a crowd of strangers.
  void connect(int peer, std::uint32_t number, const Endpoint& endpoint) {
    const HandshakeSettings handshake =
        link_handshake(settings_, encode({number, link(peer).data.size(), settings_.checksums}));
    for (LongWait long_wait;;) {
      UniqueFd fd;
      try {
        fd = connect_tcp(endpoint, ConnectRetry::unless_refused, std::min(deadline_, Deadline::after(kConnectLook)));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::timeout || deadline_.expired()) throw;
        settings_.check_alive();
        if (const auto waited = long_wait.due()) tell(*waited, {peer}, fmt::format("to answer: {}", error.what()));
        continue;
      }
      const std::optional<PeerIdentity> who = shake_hands(fd.get(), Handshake::client(handshake), peer);
      if (!who) {
        settings_.check_alive();
        std::this_thread::sleep_for(kRetryPause);
        continue;
      }
      tune_link(fd.get(), number, settings_.host_timeout);
      link(peer).who = to_string(*who);
      connection(peer, number) = std::move(fd);
      return;
    }
  }

  // Returns who answers; nothing if the connection ends. A rank that is stopped does neither, and another one may die
  // meanwhile.
  std::optional<PeerIdentity> shake_hands(int fd, Handshake handshake, int peer) {
    for (LongWait long_wait;;) {
      try {
        if (advance_link_handshake(fd, handshake, peer, settings_.name)) return handshake.peer();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer_lost || deadline_.expired()) throw;
        return std::nullopt;
      }
      pollfd polled{fd, POLLIN, 0};
      if (::poll(&polled, 1, std::min(deadline_, Deadline::after(kAnswerLook)).poll_timeout_ms()) > 0) continue;
      settings_.check_alive();
      if (deadline_.expired()) throw Error(ErrorKind::timeout, "it does not answer the handshake");
      if (const auto waited = long_wait.due()) tell(*waited, {peer}, "to answer");
    }
  }

  void accept_all(Acceptor& acceptor) {
    LongWait long_wait;
    while (!unconnected_ranks().empty()) {
      auto arrival = acceptor.next(Deadline::after(kLookPeriod));
      if (mismatch_) throw Error(*mismatch_);
      if (arrival) take(*arrival);
      if (arrival) continue;
      settings_.check_alive();
      if (patient_deadline_.expired()) throw timeout(unconnected_ranks(), "have not connected");
      if (const auto waited = long_wait.due()) tell(*waited, unconnected_ranks(), "to connect");
    }
  }

  // Returns which connection it is.
  std::uint32_t take(Acceptor::Arrival& arrival) {
    const PeerIdentity& peer = arrival.peer;
    const std::uint32_t number = decode_link_claim(peer.number).connection;
    tune_link(arrival.fd.get(), number, settings_.host_timeout);
    link(peer.rank).who = to_string(peer);
    connection(peer.rank, number) = std::move(arrival.fd);
    return number;
  }

  void forget_address() {
    try {
      store_.remove(key(settings_.rank), std::min(deadline_, Deadline::after(kFarewellTimeout)));
    } catch (const Error&) {  // nobody needs it any more
    }
  }

  // For ranks that have gone on, which see only that this rank leaves.
  void tell_all(const Error& error) {
    const Bytes message = frame(encode_abort(hash_of(settings_.name), error), kMaxControlBytes);
    for (const TcpLink& each : links_) {
      if (each.control) ::send(each.control.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  // A rank that went on at once could see another die, and leave; ranks that still connect would take it for the dead
  // one.
  void await_connected(Acceptor& acceptor) {
    std::vector<int> missing;
    for (int peer = 0; peer < settings_.size; ++peer) {
      if (peer == settings_.rank) continue;
      missing.push_back(peer);
      tell_connected(peer);
    }
    for (LongWait long_wait; !missing.empty();) {
      if (take_connected(missing)) continue;
      // One whose last handshake broke off makes it again.
      if (auto arrival = acceptor.next(Deadline::at(steady_clock().now()))) {
        if (take(*arrival) == kControlLink) tell_connected(arrival->peer.rank);
      }
      if (patient_deadline_.expired()) throw timeout(missing, "are not connected to all others");
      if (const auto waited = long_wait.due()) tell(*waited, missing, "to be connected to all others");
    }
  }

  // The same in a mesh where not all have a connection. Who is last removes the keys, which nobody needs any more.
  void await_connected_in_store() {
    constexpr std::string_view kConnected = "connected/";
    store_.set(key(settings_.rank, kConnected), "", deadline_);
    await_keys(kConnected, "are not connected", "to be connected");
    const std::string done = fmt::format("mesh/{}/done", settings_.name);
    if (store_.add(done, 1, deadline_) < settings_.size) return;
    store_.remove(done, deadline_);
    for (int rank = 0; rank < settings_.size; ++rank) {
      store_.remove(key(rank), deadline_);
      store_.remove(key(rank, kConnected), deadline_);
    }
  }

  void tell_connected(int peer) {
    exchange(peer, [&](int fd) {
      send_frame(fd, encode(ControlKind::connected, hash_of(settings_.name)), kMaxControlBytes, deadline_);
    });
  }

  // Takes off the missing ranks those that say so within a moment; false if none has.
  bool take_connected(std::vector<int>& missing) {
    std::vector<pollfd> polled;
    for (const int peer : missing) polled.push_back({link(peer).control.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), Deadline::after(kLookPeriod).poll_timeout_ms()) <= 0) return false;
    const std::vector<int> before = std::exchange(missing, {});
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (polled[i].revents == 0) {
        missing.push_back(before[i]);
        continue;
      }
      std::optional<Error> abort;
      exchange(before[i], [&](int fd) {
        const Bytes bytes = recv_frame(fd, kMaxControlBytes, patient_deadline_);
        const ControlMessage message = decode_control(bytes, before[i]);
        if (message.kind == ControlKind::abort) {
          abort = decode_abort(message, before[i], settings_.rank, settings_.size);
        } else if (message.kind != ControlKind::connected) {
          throw_corrupt({"first control message", before[i]}, "it is neither 'connected' nor an error");
        }
      });
      if (abort) throw Error(*abort);
    }
    return true;
  }

  template <class Exchange>
  void exchange(int peer, Exchange&& exchange) {
    try {
      exchange(link(peer).control.get());
    } catch (const Error& error) {
      const std::string& name = link(peer).who;
      const std::string text = error.kind() == ErrorKind::peer_lost
                                   ? describe({.peer = peer,
                                               .name = name,
                                               .how = Departure::lost,
                                               .when = "before all ranks were connected",
                                               .why = error.what()})
                                   : fmt::format("{} is not connected: {}", name, error.what());
      throw Error(error.kind(), fmt::format("group '{}': {}", settings_.name, text),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  std::optional<Refusal> admit(const PeerIdentity& peer) {
    if (const auto refusal = refuse_link(peer, settings_)) {
      if (refusal->is_mismatch) {
        mismatch_.emplace(ErrorKind::invalid_argument, fmt::format("group '{}': {}", settings_.name, refusal->reason),
                          ErrorDetail{.rank = settings_.rank, .peer = peer.rank});
      }
      return Refusal{ErrorKind::invalid_argument, refusal->reason};
    }
    if (peer.rank < settings_.rank) {
      return Refusal{ErrorKind::invalid_argument,
                     fmt::format("only ranks {} to {} connect to rank {}, not rank {}", settings_.rank + 1,
                                 settings_.size - 1, settings_.rank, peer.rank)};
    }
    // The same process comes again if it did not get the answer the first time.
    const TcpLink& here = link(peer.rank);
    if (connection(peer.rank, decode_link_claim(peer.number).connection) && here.who != to_string(peer)) {
      return Refusal{ErrorKind::invalid_argument, fmt::format("{} is already connected", here.who)};
    }
    return std::nullopt;
  }

  std::vector<int> unconnected_ranks() {
    std::vector<int> ranks;
    for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) {
      for (std::uint32_t number = 0; number < planned(rank); ++number) {
        if (connection(rank, number)) continue;
        ranks.push_back(rank);
        break;
      }
    }
    return ranks;
  }

  void tell(Duration waited, const std::vector<int>& ranks, const std::string& to_what) const {
    log_warning(fmt::format("group '{}': rank {} has waited {:.0f} s for rank(s) {} (world size {}) {}", settings_.name,
                            settings_.rank, seconds(waited), fmt::join(ranks, ", "), settings_.size, to_what));
  }

  Error timeout(const std::vector<int>& ranks, const char* what) const {
    return Error(ErrorKind::timeout,
                 fmt::format("group '{}': rank {} gave up: rank(s) {} (world size {}) {}; do they still run?",
                             settings_.name, settings_.rank, fmt::join(ranks, ", "), settings_.size, what),
                 {.rank = settings_.rank, .peer = ranks.front()});
  }

  const TcpMeshSettings& settings_;
  Store& store_;
  const Deadline deadline_;
  const Deadline patient_deadline_ = deadline_.is_never() ? deadline_ : Deadline::at(deadline_.when() + kPatience);
  std::vector<TcpLink> links_;
  std::vector<PeerAddress> addresses_;  // by rank
  std::optional<Error> mismatch_;
};

}  // namespace

TcpLinks connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  if (settings.size < 1 || settings.rank < 0 || settings.rank >= settings.size) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("there is no rank {} in a group of {} ranks", settings.rank, settings.size));
  }
  if (settings.name.empty() || settings.name.size() > kMaxIdentityTextBytes) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the name of a group has 1 to {} bytes, '{}' has {}",
                                                         kMaxIdentityTextBytes, settings.name, settings.name.size()));
  }
  if (settings.connections < 1 || settings.connections > kMaxConnections) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("group '{}': rank {} asks for {} connections to each other rank; 1 to {} are possible",
                            settings.name, settings.rank, settings.connections, kMaxConnections),
                {.rank = settings.rank});
  }
  if (settings.size == 1) return {std::vector<TcpLink>(1)};
  return Connector(settings, store, deadline).run();
}

bool are_neighbours(Neighbours neighbours, int rank, int peer, int ranks) {
  const auto up = static_cast<unsigned>((peer - rank + ranks) % ranks);
  const unsigned down = static_cast<unsigned>(ranks) - up;
  if (neighbours == Neighbours::in_ring) return up == 1 || down == 1;
  return std::has_single_bit(up) || std::has_single_bit(down);
}

}  // namespace lockstep::internal
