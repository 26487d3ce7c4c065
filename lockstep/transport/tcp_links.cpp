#include "lockstep/transport/tcp_links.h"

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
#include "lockstep/health/peer_failure.h"
#include "lockstep/base/log.h"
#include "lockstep/health/wait_reports.h"
#include "lockstep/net/acceptor.h"
#include "lockstep/net/framing.h"
#include "lockstep/net/handshake.h"
#include "lockstep/net/socket.h"
#include "lockstep/transport/control_message.h"

namespace lockstep {
namespace {

// For what the store is told last, which nobody waits for.
constexpr Duration kFarewellTimeout = std::chrono::seconds(1);
constexpr Duration kLivenessPeriod = std::chrono::milliseconds(50);  // how often who waits looks for dead peers
constexpr Duration kStoreLook = std::chrono::seconds(1);             // the same, for who waits in the store
constexpr Duration kConnectLook = std::chrono::seconds(3);           // the same, for who gets no answer at all
constexpr Duration kRetryPause = std::chrono::milliseconds(5);

void set_tcp_option(int fd, int option, int value) {
  if (::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value) != 0) {
    throw system_error(fmt::format("setting TCP option {} failed", option), errno);
  }
}

// What a connection is for; see connection_claim().
constexpr std::uint64_t kControl = 0;
constexpr int kNumberBits = 32;
constexpr std::uint64_t kUnchecked = std::uint64_t{1} << 63;
std::uint64_t number_of(const PeerIdentity& claims) { return claims.number & ((std::uint64_t{1} << kNumberBits) - 1); }
std::uint64_t for_data_of(const PeerIdentity& claims) { return (claims.number & ~kUnchecked) >> kNumberBits; }
Checksums checksums_of(const PeerIdentity& claims) {
  return (claims.number & kUnchecked) == 0 ? Checksums::on : Checksums::off;
}

void tune(int fd, std::uint64_t number) {
  if (number != kControl) return tune_tcp(fd, Duration::zero());
  // The kernel looks once a second whether the time is up, hence the second's half that is taken off.
  tune_tcp(fd, kPeerTimeout - std::chrono::milliseconds(500));
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
  UniqueFd& wire(int rank, std::uint64_t number) {
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
      if (deadline_.expired()) throw timeout(ranks, "have not come");
      if (const auto waited = long_wait.due()) tell(*waited, ranks, "to come");
    }
  }

  Endpoint endpoint_of(int peer) {
    const std::string told = store_.get(key(peer), deadline_);
    try {
      return parse_endpoint(told);
    } catch (const Error& error) {
      throw_corrupt({"address for connections", peer}, error.what());
    }
  }

  void connect(int peer) {
    const Endpoint endpoint = endpoint_of(peer);
    try {
      for (std::uint64_t number = 0; number <= link(peer).data.size(); ++number) connect(peer, number, endpoint);
    } catch (const Error& error) {
      throw Error(error.kind(),
                  fmt::format("mesh '{}': rank {} cannot connect to {} at {}: {}{}", settings_.name, settings_.rank,
                              settings_.name_of(peer), to_string(endpoint), error.what(), settings_.about(peer)),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  // One whose handshake breaks off is made again: the peer may have been too busy for it, or had a crowd of strangers.
  void connect(int peer, std::uint64_t number, const Endpoint& endpoint) {
    const HandshakeSettings handshake =
        handshake_settings(connection_claim(number, link(peer).data.size(), settings_.checksums));
    for (;;) {
      PeerIdentity claims;
      UniqueFd fd;
      try {
        fd = connect_tcp(endpoint, ConnectRetry::never, std::min(deadline_, Deadline::after(kConnectLook)));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::timeout || deadline_.expired()) throw;
        settings_.check_alive();
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
      tune(fd.get(), number);
      link(peer).who = to_string(claims);
      wire(peer, number) = std::move(fd);
      return;
    }
  }

  void accept_all(Acceptor& acceptor) {
    LongWait long_wait;
    while (!unconnected_ranks().empty()) {
      auto arrival = acceptor.next(std::min(deadline_, Deadline::after(kLivenessPeriod)));
      if (mismatch_) throw Error(*mismatch_);
      if (arrival) {
        take(*arrival);
        continue;
      }
      settings_.check_alive();
      if (deadline_.expired()) throw timeout(unconnected_ranks(), "have not connected");
      if (const auto waited = long_wait.due()) tell(*waited, unconnected_ranks(), "to connect");
    }
  }

  void take(Acceptor::Arrival& arrival) {
    const PeerIdentity& claims = arrival.peer;
    tune(arrival.fd.get(), number_of(claims));
    link(claims.rank).who = to_string(claims);
    wire(claims.rank, number_of(claims)) = std::move(arrival.fd);
  }

  void forget_address() {
    try {
      store_.remove(key(settings_.rank), std::min(deadline_, Deadline::after(kFarewellTimeout)));
    } catch (const Error&) {  // nobody needs it any more
    }
  }

  // For those that have gone on, and see no more than that this rank leaves.
  void tell_all(const Error& word) {
    const Bytes message = frame(encode_abort(word), kMaxControlBytes);
    for (const TcpLink& each : links_) {
      if (each.control) ::send(each.control.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  // Who went on at once could see a rank die and leave, while others still connect and take him for the dead one.
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
        take(*arrival);
        if (number_of(arrival->peer) == kControl) tell_connected(arrival->peer.rank);
      }
      if (deadline_.expired()) throw timeout(missing, "are not connected to all others");
      if (const auto waited = long_wait.due()) tell(*waited, missing, "to be connected to all others");
    }
  }

  void tell_connected(int peer) {
    exchange(peer, [&](int fd) { send_frame(fd, encode(ControlKind::connected), kMaxControlBytes, deadline_); });
  }

  // Of the missing ranks takes off those that have said so by now, or soon; false if none has.
  bool take_connected(std::vector<int>& missing) {
    std::vector<pollfd> polled;
    for (const int peer : missing) polled.push_back({link(peer).control.get(), POLLIN, 0});
    const Deadline soon = std::min(deadline_, Deadline::after(kLivenessPeriod));
    if (::poll(polled.data(), polled.size(), soon.poll_timeout_ms()) <= 0) return false;
    const std::vector<int> before = std::exchange(missing, {});
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (polled[i].revents == 0) {
        missing.push_back(before[i]);
        continue;
      }
      std::optional<Error> word;
      exchange(before[i], [&](int fd) {
        const Bytes message = recv_frame(fd, kMaxControlBytes, deadline_);
        ControlMessage said = decode_control(message, before[i], settings_.rank, settings_.size);
        word = std::move(said.error);
        const bool is_known = word || said.kind == ControlKind::connected;
        if (!is_known) throw_corrupt({"first control message", before[i]}, "neither connected nor an error");
      });
      if (word) throw Error(*word);
    }
    return true;
  }

  template <class Exchange>
  void exchange(int peer, Exchange&& exchange) {
    try {
      exchange(link(peer).control.get());
    } catch (const Error& error) {
      const bool lost = error.kind() == ErrorKind::peer_lost;
      throw Error(error.kind(),
                  fmt::format("mesh '{}': {} {}: {}", settings_.name, link(peer).who,
                              lost ? "was lost before all ranks were connected" : "is not connected", error.what()),
                  {.rank = settings_.rank, .peer = peer});
    }
  }

  std::optional<Refusal> admit(const PeerIdentity& claims) {
    const auto refuse = [](std::string why) { return Refusal{ErrorKind::invalid_argument, std::move(why)}; };
    if (claims.text != settings_.name)
      return refuse(fmt::format("this is mesh '{}', not '{}'", settings_.name, claims.text));
    if (claims.generation != settings_.generation) {
      return refuse(fmt::format("this is generation {}, not {}", settings_.generation, claims.generation));
    }
    if (claims.world_size != settings_.size) {
      return refuse(fmt::format("this mesh has {} ranks, not {}", settings_.size, claims.world_size));
    }
    if (claims.rank <= settings_.rank || claims.rank >= settings_.size) {
      return refuse(fmt::format("only ranks {} to {} connect to rank {}, not rank {}", settings_.rank + 1,
                                settings_.size - 1, settings_.rank, claims.rank));
    }
    const std::size_t here = link(claims.rank).data.size();
    if (for_data_of(claims) != here) {
      return refuse_and_fail(
          claims, fmt::format("{} makes {} connections for data where rank {} expects {}: their number "
                              "(LOCKSTEP_CONNECTIONS, GroupOptions::connections) must be the same on all ranks",
                              to_string(claims), for_data_of(claims), settings_.rank, here));
    }
    if (checksums_of(claims) != settings_.checksums) {
      const bool has_them = settings_.checksums == Checksums::on;
      return refuse_and_fail(
          claims, fmt::format("{} sends its data {} checksums where rank {} expects it {}: whether there are any "
                              "(LOCKSTEP_CHECKSUMS, GroupOptions::checksums) must be the same on all ranks",
                              to_string(claims), has_them ? "without" : "with", settings_.rank,
                              has_them ? "with them" : "without"));
    }
    if (number_of(claims) > here) {
      return refuse(
          fmt::format("there is no connection number {} here: rank {} has {} for data, besides one for control",
                      number_of(claims), settings_.rank, here));
    }
    // The same process again did not get the answer to the first time.
    if (wire(claims.rank, number_of(claims)) && link(claims.rank).who != to_string(claims)) {
      return refuse(fmt::format("{} is here already", link(claims.rank).who));
    }
    return {};
  }

  // This rank would wait in vain, since that one gives up.
  Refusal refuse_and_fail(const PeerIdentity& claims, const std::string& why) {
    mismatch_.emplace(ErrorKind::invalid_argument, fmt::format("mesh '{}': {}", settings_.name, why),
                      ErrorDetail{.rank = settings_.rank, .peer = claims.rank});
    return {ErrorKind::invalid_argument, why};
  }

  std::vector<int> unconnected_ranks() {
    std::vector<int> ranks;
    for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) {
      const bool complete = link(rank).control && std::ranges::all_of(link(rank).data, &UniqueFd::operator bool);
      if (!complete) ranks.push_back(rank);
    }
    return ranks;
  }

  void tell(Duration waited, const std::vector<int>& ranks, const char* to_what) const {
    log_warning(fmt::format("mesh '{}': rank {} has waited {:.0f} s for ranks {} of {} {}", settings_.name,
                            settings_.rank, seconds(waited), fmt::join(ranks, ", "), settings_.size, to_what));
  }

  Error timeout(const std::vector<int>& ranks, const char* what) const {
    return Error(ErrorKind::timeout,
                 fmt::format("mesh '{}': rank {} waited in vain, ranks {} of {} {}", settings_.name, settings_.rank,
                             fmt::join(ranks, ", "), settings_.size, what),
                 {.rank = settings_.rank, .peer = ranks.front()});
  }

  const TcpMeshSettings& settings_;
  Store& store_;
  const Deadline deadline_;
  std::vector<TcpLink> links_;
  std::optional<Error> mismatch_;
};

}  // namespace

std::uint64_t connection_claim(std::uint64_t number, std::size_t for_data, Checksums checksums) {
  const std::uint64_t claim = number | static_cast<std::uint64_t>(for_data) << kNumberBits;
  return checksums == Checksums::on ? claim : claim | kUnchecked;
}

std::vector<TcpLink> connect_tcp_links(const TcpMeshSettings& settings, Store& store, Deadline deadline) {
  if (settings.size < 1 || settings.rank < 0 || settings.rank >= settings.size) {
    throw Error(ErrorKind::invalid_argument, fmt::format("rank {} of {} is none", settings.rank, settings.size));
  }
  if (settings.name.empty() || settings.name.size() > kMaxIdentityTextBytes) {
    throw Error(ErrorKind::invalid_argument, fmt::format("the name of a mesh has 1 to {} bytes, '{}' has {}",
                                                         kMaxIdentityTextBytes, settings.name, settings.name.size()));
  }
  if (settings.connections < 1 || settings.connections > kMaxConnections) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("mesh '{}': rank {} is to make {} connections to each other rank; 1 to {} are possible",
                            settings.name, settings.rank, settings.connections, kMaxConnections),
                {.rank = settings.rank});
  }
  if (settings.size == 1) return std::vector<TcpLink>(1);
  return Connector(settings, store, deadline).run();
}

}  // namespace lockstep
