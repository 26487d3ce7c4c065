#include "lockstep/comm/transport/link_opener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/link_claim.h"

namespace lockstep::internal {
namespace {

constexpr Duration kRefusedFor = std::chrono::seconds(2);
constexpr Duration kFirstPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);
constexpr Duration kResourcePause = std::chrono::milliseconds(100);  // after running out of descriptors or memory

constexpr std::uint8_t bits(LinkOpener::Part part) { return part == LinkOpener::Part::control ? 1 : 3; }

// The functions of the settings serve the ranks while they connect at the start, no longer.
TcpMeshSettings without_functions(TcpMeshSettings settings) {
  settings.check_alive = {};
  settings.cause_of = {};
  settings.name_of = {};
  settings.about = {};
  settings.node = {};
  return settings;
}

// A connection to a free port of this host can be one to itself.
bool is_connected_to_itself(int fd, const Endpoint& endpoint) {
  const Endpoint own = local_address(fd).endpoint();
  return own.port == endpoint.port && own.host == endpoint.host;
}

}  // namespace

LinkOpener::LinkOpener(const TcpMeshSettings& settings, const std::vector<TcpLink>& links,
                       std::vector<PeerAddress> addresses, std::vector<Listener> listeners, Report report)
    : settings_(without_functions(settings)),
      addresses_(std::move(addresses)),
      report_(std::move(report)),
      acceptor_(fmt::format("group '{}'", settings.name), std::move(listeners), link_handshake(settings, kControlLink),
                [this](const PeerIdentity& peer) { return admit(peer); }),
      wake_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      wanted_(links.size()),
      pairs_(links.size()) {
  if (!wake_) throw system_error("making an event descriptor for connections", errno);
  requests_.reserve(2 * links.size());  // each part of each pair is asked for once
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    Pair& pair = pairs_[peer];
    if (links[peer].control) pair.control = Way::accepted;
    for (const UniqueFd& each : links[peer].data) pair.arrived.push_back(static_cast<bool>(each));
    const auto arrived = std::ranges::count(pair.arrived, true);
    if (arrived != 0) pair.data = arrived == settings.connections ? Way::accepted : Way::incoming;
  }
  const SignalBlock block = SignalBlock::of_new_thread();
  thread_ = std::thread([this] { run(); });
}

LinkOpener::~LinkOpener() {
  if (!fork_guard_.is_here()) {  // a forked child has no such thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void LinkOpener::want(int peer, Part part) noexcept {
  const std::uint8_t wanted = bits(part);
  std::atomic<std::uint8_t>& before = wanted_[static_cast<std::size_t>(peer)];
  if ((before.load(std::memory_order_relaxed) & wanted) == wanted || (before.fetch_or(wanted) & wanted) == wanted) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(peer);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// False without descriptors or memory, of which there may be more in a moment.
template <class Step>
bool LinkOpener::guarded(Step&& step) noexcept {
  try {
    step();
    return true;
  } catch (const std::exception& error) {
    warnings_.warn(fmt::format("group '{}': rank {} cannot open connections now and will try again: {}", settings_.name,
                               settings_.rank, error.what()));
    return false;
  }
}

void LinkOpener::run() noexcept {
  for (bool goes_on = true; goes_on;) {
    bool is_well = guarded([&] { goes_on = take_requests(); });
    is_well &= guarded([&] { accept(); });
    is_well &= guarded([&] { adopt_begun(); });
    for (auto next = attempts_.begin(); next != attempts_.end();) {
      const auto attempt = next++;
      is_well &= guarded([&] { advance(attempt); });
    }
    std::erase_if(attempts_, [&](const Attempt& each) { return pair(each.peer).is_lost; });
    if (!goes_on) break;
    if (!is_well) ::poll(nullptr, 0, Deadline::after(kResourcePause).poll_timeout_ms());
    if (is_well) guarded([&] { sleep(); });
  }
  adopt_rest();
}

// A peer whose connection was accepted would take its end for the death of this rank, which says goodbye first.
void LinkOpener::adopt_rest() noexcept {
  for (Acceptor::Arrival& each : begun_) {
    guarded([&] { opened(each.peer.rank, kControlLink, std::move(each.fd)); });
  }
}

void LinkOpener::sleep() {
  Deadline wake_at = acceptor_.wake_at();
  std::vector<pollfd> polled{{acceptor_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  for (const Acceptor::Arrival& each : begun_) polled.push_back({each.fd.get(), POLLIN, 0});
  for (const Attempt& each : attempts_) {
    if (!each.fd) {
      wake_at = std::min(wake_at, Deadline::at(each.due));
      continue;
    }
    if (!each.is_connected) wake_at = std::min(wake_at, Deadline::at(each.since + 2 * settings_.host_timeout));
    polled.push_back({each.fd.get(), static_cast<short>(each.is_connected ? POLLIN : POLLOUT), 0});
  }
  ::poll(polled.data(), polled.size(), wake_at.poll_timeout_ms());
  std::uint64_t calls = 0;
  [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &calls, sizeof calls);
}

bool LinkOpener::take_requests() {
  std::vector<int> requests;
  {
    const std::lock_guard lock(mutex_);
    if (is_ending_) return false;
    requests.assign(requests_.begin(), requests_.end());
    requests_.clear();
  }
  for (const int peer : requests) open_wanted(peer);
  return true;
}

void LinkOpener::open_wanted(int peer) {
  Pair& pair = this->pair(peer);
  const std::uint8_t wanted = wanted_[static_cast<std::size_t>(peer)];
  if (pair.is_lost) return;
  const auto add = [&](std::uint32_t connection) {
    attempts_.push_back({.peer = peer, .connection = connection, .pause = kFirstPause});
  };
  if (wanted != 0 && pair.control == Way::none) {
    pair.control = Way::outgoing;
    add(kControlLink);
  }
  if ((wanted & bits(Part::data)) == bits(Part::data) && is_open(pair.control) && pair.data == Way::none) {
    pair.data = Way::outgoing;
    for (int i = 1; i <= settings_.connections; ++i) add(static_cast<std::uint32_t>(i));
  }
}

void LinkOpener::accept() {
  while (auto arrival = acceptor_.take()) {
    const std::uint32_t connection = decode_link_claim(arrival->peer.number).connection;
    drop_attempts(arrival->peer.rank, connection != kControlLink);
    tune_link(arrival->fd.get(), connection, settings_.host_timeout);
    if (connection == kControlLink) {
      pair(arrival->peer.rank).control = Way::incoming;
      // The peer opens it again if it has lost the first one.
      std::erase_if(begun_, [&](const Acceptor::Arrival& each) { return each.peer.rank == arrival->peer.rank; });
      begun_.push_back(std::move(*arrival));
    } else {
      opened(arrival->peer.rank, connection, std::move(arrival->fd));
    }
  }
}

// A peer that leaves while it opens a connection has not died.
void LinkOpener::adopt_begun() {
  std::vector<Acceptor::Arrival> silent;
  for (Acceptor::Arrival& each : std::exchange(begun_, {})) {
    std::byte first;
    const ssize_t count = ::recv(each.fd.get(), &first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (count > 0) {
      opened(each.peer.rank, kControlLink, std::move(each.fd));
    } else if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      silent.push_back(std::move(each));
    } else {
      pair(each.peer.rank).control = Way::none;
      open_wanted(each.peer.rank);
    }
  }
  begun_ = std::move(silent);
}

std::optional<Refusal> LinkOpener::admit(const PeerIdentity& peer) {
  if (const auto refusal = refuse_link(peer, settings_)) return Refusal{ErrorKind::invalid_argument, refusal->reason};
  Pair& pair = this->pair(peer.rank);
  const std::uint32_t connection = decode_link_claim(peer.number).connection;
  const Way way = this->way(pair, connection);
  if (pair.is_lost) {
    return Refusal{ErrorKind::invalid_argument,
                   fmt::format("rank {} could not connect to rank {} and has given it up", settings_.rank, peer.rank)};
  }
  if ((way == Way::outgoing && settings_.rank > peer.rank) || way == Way::made) {
    return Refusal{ErrorKind::aborted, "both ranks connect at once, and the other connection is used"};
  }
  const bool is_second = connection != kControlLink && pair.arrived[connection - 1];
  if (way == Way::accepted || is_second) {
    return Refusal{ErrorKind::invalid_argument, fmt::format("{} is already connected", to_string(peer))};
  }
  if (connection != kControlLink && !is_open(pair.control)) {
    return Refusal{ErrorKind::aborted, "the connection for control is not complete here"};
  }
  return std::nullopt;
}

void LinkOpener::opened(int peer, std::uint32_t connection, UniqueFd fd) {
  Pair& pair = this->pair(peer);
  Way& way = this->way(pair, connection);
  if (way != Way::outgoing) way = Way::incoming;
  if (connection != kControlLink) pair.arrived[connection - 1] = true;
  if (connection == kControlLink || std::ranges::find(pair.arrived, false) == pair.arrived.end()) {
    way = way == Way::outgoing ? Way::made : Way::accepted;
  }
  report_.opened(peer, connection, std::move(fd));
  open_wanted(peer);
}

void LinkOpener::drop_attempts(int peer, bool for_data) {
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    const auto each = next++;
    if (each->peer != peer || (each->connection != kControlLink) != for_data) continue;
    each->is_superfluous = true;
    if (!each->fd) attempts_.erase(each);
  }
  Way& way = for_data ? pair(peer).data : pair(peer).control;
  if (way == Way::outgoing) way = Way::incoming;
}

void LinkOpener::give_up(int peer, const std::string& why) {
  const PeerAddress& address = addresses_[static_cast<std::size_t>(peer)];
  pair(peer).is_lost = true;
  report_.failed(peer,
                 fmt::format("cannot connect to it at {}: {}{}", to_string(address.endpoint), why, address.about));
}

void LinkOpener::advance(Attempts::iterator attempt) {
  const int peer = attempt->peer;
  const std::uint32_t connection = attempt->connection;
  if (pair(peer).is_lost || (!attempt->fd && steady_clock().now() < attempt->due)) return;
  try {
    step(*attempt);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    if (attempt->is_superfluous) {
      attempts_.erase(attempt);
    } else if (error.kind() == ErrorKind::aborted) {  // the peer's own connection is on its way, unless it dies
      pause(*attempt);
    } else if (error.kind() == ErrorKind::peer_lost) {
      try_again(*attempt, error.what());
    } else {
      give_up(peer, error.what());
    }
    return;
  }
  if (!attempt->is_connected || !attempt->handshake->over()) return;
  UniqueFd fd = std::move(attempt->fd);
  const bool is_needed = !attempt->is_superfluous;
  attempts_.erase(attempt);
  if (!is_needed) return;
  if (connection == kControlLink) {
    const Bytes ready = frame(encode(ControlKind::connected, hash_of(settings_.name)), kMaxControlBytes);
    send_some(fd.get(), as_span(ByteView(ready)));  // into the empty buffer of a socket; if it fails, reads will, too
  }
  opened(peer, connection, std::move(fd));
}

// As far as it goes.
void LinkOpener::step(Attempt& attempt) {
  if (!attempt.fd) connect(attempt);
  if (!attempt.is_connected && !finish_connect(attempt)) return;
  advance_link_handshake(attempt.fd.get(), *attempt.handshake, attempt.peer, settings_.name);
}

void LinkOpener::connect(Attempt& attempt) {
  const Endpoint& endpoint = addresses_[static_cast<std::size_t>(attempt.peer)].endpoint;
  const SocketAddress address = resolve(endpoint, Deadline::after(std::chrono::seconds(1))).front();
  attempt.since = steady_clock().now();
  attempt.is_connected = attempt.is_refused = false;
  attempt.fd =
      PrivateFd::open([&] { return ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!attempt.fd) throw system_error("making a socket failed", errno);
  if (::connect(attempt.fd.get(), address.data(), address.length()) == 0) return;
  if (errno != EINPROGRESS && errno != EINTR) fail_to_connect(attempt, errno);
}

void LinkOpener::fail_to_connect(Attempt& attempt, int error) {
  attempt.is_refused = error == ECONNREFUSED;
  throw Error(may_heal(error) ? ErrorKind::peer_lost : ErrorKind::invalid_argument, std::strerror(error));
}

// Whether it is connected; then the handshake has begun.
bool LinkOpener::finish_connect(Attempt& attempt) {
  pollfd entry{attempt.fd.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) {
    if (steady_clock().now() - attempt.since < 2 * settings_.host_timeout) return false;
    throw Error(ErrorKind::peer_lost, fmt::format("no answer for {} s", seconds(2 * settings_.host_timeout)));
  }
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  const Endpoint& endpoint = addresses_[static_cast<std::size_t>(attempt.peer)].endpoint;
  if (error == 0 && is_connected_to_itself(attempt.fd.get(), endpoint)) error = ECONNREFUSED;
  if (error != 0) fail_to_connect(attempt, error);
  tune_link(attempt.fd.get(), attempt.connection, settings_.host_timeout);
  const LinkClaim claim{attempt.connection, static_cast<std::size_t>(settings_.connections), settings_.checksums};
  attempt.handshake = std::make_unique<Handshake>(Handshake::client(link_handshake(settings_, encode(claim))));
  attempt.is_connected = true;
  return true;
}

// Within a host nothing is silent but a process that stands still.
bool LinkOpener::is_ended_by_silence(const Attempt& attempt) {
  const Endpoint& endpoint = addresses_[static_cast<std::size_t>(attempt.peer)].endpoint;
  return !is_open(pair(attempt.peer).control) && endpoint.host != settings_.address;
}

void LinkOpener::try_again(Attempt& attempt, const std::string& why) {
  const TimePoint now = steady_clock().now();
  // A peer that accepted and was too slow for the handshake lives.
  const bool is_refused = !attempt.is_connected && attempt.is_refused;
  const bool is_unreached = !attempt.is_connected && !attempt.is_refused;
  attempt.refused_since = is_refused ? std::min(attempt.refused_since, now) : TimePoint::max();
  attempt.unreached_since = is_unreached ? std::min(attempt.unreached_since, attempt.since) : TimePoint::max();
  const bool is_silent = is_unreached && now - attempt.unreached_since >= 2 * settings_.host_timeout;
  if (is_refused && now - attempt.refused_since >= kRefusedFor) return give_up(attempt.peer, why);
  if (is_silent && is_ended_by_silence(attempt)) return give_up(attempt.peer, why);
  pause(attempt);
}

void LinkOpener::pause(Attempt& attempt) {
  attempt.fd.reset();
  attempt.due = steady_clock().now() + attempt.pause;
  attempt.pause = std::min(attempt.pause * 2, kLongestPause);
}

}  // namespace lockstep::internal
