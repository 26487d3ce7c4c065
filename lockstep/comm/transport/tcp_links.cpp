#include "lockstep/comm/transport/tcp_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
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
constexpr Duration kRetryPause = std::chrono::milliseconds(5);
constexpr Duration kPatience = std::chrono::seconds(2);  // for ranks that wait to learn why others cannot connect

void set_tcp_option(int fd, int option, int value) {
  if (::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value) != 0) {
    throw system_error(fmt::format("setting TCP option {} failed", option), errno);
  }
}

constexpr std::uint32_t kControl = 0;  // of LinkClaim::connection

void tune(int fd, std::uint32_t connection, Duration host_timeout) {
  if (connection != kControl) return tune_tcp(fd, Duration::zero());
  // The kernel looks once a second whether the time is up, hence the second's half that is taken off.
  tune_tcp(fd, host_timeout - std::chrono::milliseconds(500));
  set_tcp_option(fd, TCP_KEEPIDLE, 1);
  set_tcp_option(fd, TCP_KEEPINTVL, 1);
}

class Connector {
 public:
  Connector(const TcpMeshSettings& settings, Store& store, Deadline deadline)
      : settings_(settings), store_(store), deadline_(deadline), links_(static_cast<std::size_t>(settings.size)) {
    for (TcpLink& link : links_) link.data.resize(static_cast<std::size_t>(settings.connections));
    link(settings.rank).who = to_string(local_identity(settings.rank, settings.size, settings.generation));
    for (const int neighbour : settings.node.ranks) link(neighbour).data.clear();
  }

  std::vector<TcpLink> run() {
    std::vector<Listener> listeners;
    listeners.push_back(Listener::bind({settings_.address, 0}, deadline_));
    const Endpoint here = listeners.front().address().endpoint();
    Acceptor acceptor(fmt::format("mesh '{}'", settings_.name), std::move(listeners), handshake_settings(kControl),
                      [this](const PeerIdentity& claims) { return admit(claims); });
    try {
      store_.set(key(settings_.rank), to_string(here), deadline_);
      await_everyone();
      for (int peer = 0; peer < settings_.rank; ++peer) connect(peer);
      accept_all(acceptor);
      forget_address();
      await_connected(acceptor);
    } catch (const Error& error) {
      const Error cause = settings_.cause_of(error);
      tell_all(error_for_peers(link(settings_.rank).who, settings_.rank, cause));
      throw cause;
    }
    return std::move(links_);
  }

 private:
  TcpLink& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  UniqueFd& connection(int rank, std::uint32_t number) {
    return number == kControl ? link(rank).control : link(rank).data[number - 1];
  }
  std::string key(int rank) const { return fmt::format("mesh/{}/{}", settings_.name, rank); }

  HandshakeSettings handshake_settings(std::uint64_t claim) const {
    PeerIdentity mine = local_identity(settings_.rank, settings_.size, settings_.generation);
    mine.number = claim;
    mine.text = settings_.name;
    return {settings_.token, settings_.job_id, Channel::link, mine};
  }

  // Only once all have published their addresses can a rank that does not answer be blamed for it.
  void await_everyone() {
    std::vector<std::string> keys;
    for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) keys.push_back(key(rank));
    for (int rank = 0; rank < settings_.rank; ++rank) keys.push_back(key(rank));
    std::vector<std::string> missing = keys;
    for (LongWait long_wait;;) {
      missing = store_.wait(missing, std::min(deadline_, Deadline::after(kStoreLook)));
      if (missing.empty()) return;
      settings_.check_alive();
      std::vector<int> ranks;
      for (int rank = 0; rank < settings_.size; ++rank) {
        if (std::ranges::find(missing, key(rank)) != missing.end()) ranks.push_back(rank);
      }
      if (deadline_.expired()) throw timeout(ranks, "have not joined");
      if (const auto waited = long_wait.due()) tell(*waited, ranks, "to join");
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
    const Endpoint endpoint = endpoint_of(peer);
    try {
      for (std::uint32_t number = 0; number <= link(peer).data.size(); ++number) connect(peer, number, endpoint);
    } catch (const Error& error) {
      const bool is_silent = error.kind() == ErrorKind::timeout;  // it has come, so its host is not reached
      throw Error(is_silent ? ErrorKind::peer_lost : error.kind(),
                  fmt::format("mesh '{}': rank {} cannot connect to {} at {}: {}{}", settings_.name, settings_.rank,
                              settings_.name_of(peer), to_string(endpoint), error.what(), settings_.about(peer)),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  // One whose handshake breaks off is made again: the peer may have been too busy for it, or had a crowd of strangers.
  void connect(int peer, std::uint32_t number, const Endpoint& endpoint) {
    const HandshakeSettings handshake =
        handshake_settings(encode({number, link(peer).data.size(), settings_.checksums}));
    for (LongWait long_wait;;) {
      PeerIdentity claims;
      UniqueFd fd;
      try {
        fd = connect_tcp(endpoint, ConnectRetry::unless_refused, std::min(deadline_, Deadline::after(kConnectLook)));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::timeout || deadline_.expired()) throw;
        settings_.check_alive();
        if (const auto waited = long_wait.due()) tell(*waited, {peer}, fmt::format("to answer: {}", error.what()));
        continue;
      }
      try {
        claims = handshake_as_client(fd.get(), handshake, deadline_);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer_lost || deadline_.expired()) throw;
        settings_.check_alive();
        std::this_thread::sleep_for(kRetryPause);
        continue;
      }
      if (claims.rank != peer || claims.text != settings_.name) {
        throw Error(ErrorKind::invalid_argument,
                    fmt::format("{} of mesh '{}' answers there", to_string(claims), claims.text));
      }
      tune(fd.get(), number, settings_.host_timeout);
      link(peer).who = to_string(claims);
      connection(peer, number) = std::move(fd);
      return;
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
    tune(arrival.fd.get(), number, settings_.host_timeout);
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
        if (take(*arrival) == kControl) tell_connected(arrival->peer.rank);
      }
      if (patient_deadline_.expired()) throw timeout(missing, "are not connected to all others");
      if (const auto waited = long_wait.due()) tell(*waited, missing, "to be connected to all others");
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
      throw Error(error.kind(), fmt::format("mesh '{}': {}", settings_.name, text),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  std::optional<Refusal> admit(const PeerIdentity& peer) {
    const bool is_rank = peer.rank >= 0 && peer.rank < settings_.size;
    if (const auto refusal = refuse_link(peer, is_rank ? link(peer.rank).data.size() : 0, settings_)) {
      if (refusal->is_mismatch) {
        mismatch_.emplace(ErrorKind::invalid_argument, fmt::format("mesh '{}': {}", settings_.name, refusal->reason),
                          ErrorDetail{.rank = settings_.rank, .peer = peer.rank});
      }
      return Refusal{ErrorKind::invalid_argument, refusal->reason};
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
      const bool complete = link(rank).control && std::ranges::all_of(link(rank).data, &UniqueFd::operator bool);
      if (!complete) ranks.push_back(rank);
    }
    return ranks;
  }

  void tell(Duration waited, const std::vector<int>& ranks, const std::string& to_what) const {
    log_warning(fmt::format("mesh '{}': rank {} has waited {:.0f} s for ranks {} of {} {}", settings_.name,
                            settings_.rank, seconds(waited), fmt::join(ranks, ", "), settings_.size, to_what));
  }

  Error timeout(const std::vector<int>& ranks, const char* what) const {
    return Error(ErrorKind::timeout,
                 fmt::format("mesh '{}': rank {} gave up waiting: ranks {} of {} {}", settings_.name, settings_.rank,
                             fmt::join(ranks, ", "), settings_.size, what),
                 {.rank = settings_.rank, .peer = ranks.front()});
  }

  const TcpMeshSettings& settings_;
  Store& store_;
  const Deadline deadline_;
  const Deadline patient_deadline_ = deadline_.is_never() ? deadline_ : Deadline::at(deadline_.when() + kPatience);
  std::vector<TcpLink> links_;
  std::optional<Error> mismatch_;
};

}  // namespace

std::vector<TcpLink> connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  if (settings.size < 1 || settings.rank < 0 || settings.rank >= settings.size) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("there is no rank {} in a mesh of {} ranks", settings.rank, settings.size));
  }
  if (settings.name.empty() || settings.name.size() > kMaxIdentityTextBytes) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the name of a mesh has 1 to {} bytes, '{}' has {}",
                                                         kMaxIdentityTextBytes, settings.name, settings.name.size()));
  }
  if (settings.connections < 1 || settings.connections > kMaxConnections) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("mesh '{}': rank {} asks for {} connections to each other rank; it must be 1 to {}",
                            settings.name, settings.rank, settings.connections, kMaxConnections),
                {.rank = settings.rank});
  }
  if (settings.size == 1) return std::vector<TcpLink>(1);
  return Connector(settings, store, deadline).run();
}

}  // namespace lockstep::internal
