#include "lockstep/comm/store/store_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/base/rate_limited_log.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/comm/net/acceptor.h"
#include "lockstep/comm/store/store_connection.h"

namespace lockstep::internal {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBindTimeout = 10s;
constexpr auto kFailurePause = 10ms;  // after running out of memory
constexpr std::uint64_t kAcceptorTag = 0;
constexpr std::uint64_t kWakerTag = 1;

std::vector<Listener> listen_at(const Endpoint& endpoint) {
  std::vector<Listener> listeners;
  listeners.push_back(Listener::bind(endpoint, Deadline::after(kBindTimeout)));
  return listeners;
}

// Why a connection is closed; empty if its client closed it.
std::string reason_of(const std::exception& failure) {
  const auto* error = dynamic_cast<const Error*>(&failure);
  return error != nullptr && error->kind() == ErrorKind::peer_lost ? "" : failure.what();
}

}  // namespace

Admission admit_generation(std::uint64_t generation) {
  return [generation](const PeerIdentity& peer) -> std::optional<Refusal> {
    if (peer.generation == generation) return std::nullopt;
    return Refusal{
        ErrorKind::invalid_argument,
        fmt::format("this job is at generation {}, but {} has generation {}; was the job restarted in between?",
                    generation, to_string(peer), peer.generation)};
  };
}

class StoreServer::Loop {
 public:
  Loop(const Endpoint& endpoint, StoreServerOptions options)
      : options_(std::move(options)),
        acceptor_("the store server", listen_at(endpoint), handshake(),
                  [this](const PeerIdentity& peer) { return admit(peer); },
                  {.half_open = options_.limits.half_open, .handshake = options_.limits.handshake}),
        epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
        waker_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
    if (!epoll_ || !waker_) throw system_error("making a store server's event queue failed", errno);
    watch(EPOLL_CTL_ADD, acceptor_.fd(), EPOLLIN, kAcceptorTag);
    watch(EPOLL_CTL_ADD, waker_.get(), EPOLLIN, kWakerTag);
    const SignalBlock block = SignalBlock::of_new_thread();
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(waker_.get(), &one, sizeof one);
    thread_.join();
  }

  const Listener& listener() const { return acceptor_.listeners().front(); }

  std::uint64_t next_will() {
    const std::lock_guard lock(wills_mutex_);
    return next_will_;
  }
  bool wait_for_wills(Deadline deadline, std::uint64_t before) {
    std::unique_lock lock(wills_mutex_);
    return wait_until(wills_changed_, lock, deadline, [&] { return oldest_will_ >= std::min(before, next_will_); });
  }

 private:
  using Connections = std::map<ConnectionId, StoreConnection>;

  void run();
  bool run_once();
  void watch(int operation, int fd, std::uint32_t events, std::uint64_t tag);
  HandshakeSettings handshake() const {
    return {.token = options_.token, .job_id = options_.job_id, .channel = Channel::store, .mine = options_.identity};
  }
  void accept_all();
  void add(UniqueFd fd);
  void serve(ConnectionId id);
  void deliver(const std::vector<AddressedReply>& replies);
  void update_watch(ConnectionId id, StoreConnection& connection);
  void close(ConnectionId id, std::string_view why);
  void publish_will_numbers();
  std::optional<Refusal> admit(const PeerIdentity& peer);
  bool close_idlest();
  int next_timeout_ms() const;

  StoreServerOptions options_;
  Acceptor acceptor_;
  UniqueFd epoll_;
  UniqueFd waker_;
  StoreMachine machine_;
  Connections connections_;
  ConnectionId next_id_ = kWakerTag + 1;
  RateLimitedLog warnings_;  // a port scan must not fill the disk
  std::mutex wills_mutex_;
  std::condition_variable wills_changed_;
  // As the machine has them; guarded by wills_mutex_.
  std::uint64_t oldest_will_ = 0, next_will_ = 0;
  std::thread thread_;
};

void StoreServer::Loop::watch(int operation, int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0)
    throw system_error("watching a store connection failed", errno);
}

int StoreServer::Loop::next_timeout_ms() const {
  const Deadline expiry = Deadline::at(machine_.next_expiry().value_or(TimePoint::max()));
  return std::min(expiry, acceptor_.wake_at()).poll_timeout_ms();
}

void StoreServer::Loop::run() {
  for (;;) {
    try {
      if (!run_once()) break;
    } catch (const std::exception& failure) {  // most likely out of memory, outside the service of one client
      warnings_.warn(failure.what());
      ::poll(nullptr, 0, kFailurePause / 1ms);
    }
  }
  // No client may wait for a server that has ended.
  acceptor_.close();
  connections_.clear();
}

// False when it is over.
bool StoreServer::Loop::run_once() {
  constexpr int kMaxEvents = 64;
  epoll_event events[kMaxEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kMaxEvents, next_timeout_ms());
  if (count < 0 && errno != EINTR) {
    warnings_.warn(fmt::format("the store server stops: waiting for events failed: {}", std::strerror(errno)));
    return false;
  }
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    if (tag == kWakerTag) return false;
    if (connections_.contains(tag)) serve(tag);  // unless an earlier event of this batch has closed it
    if (tag == kAcceptorTag) accept_all();
  }
  if (acceptor_.wake_at().expired()) accept_all();
  deliver(machine_.expire(steady_clock().now()));
  publish_will_numbers();
  return true;
}

void StoreServer::Loop::publish_will_numbers() {
  const std::lock_guard lock(wills_mutex_);
  next_will_ = machine_.next_will();
  if (std::exchange(oldest_will_, machine_.oldest_will()) != oldest_will_) wills_changed_.notify_all();
}

void StoreServer::Loop::accept_all() {
  try {
    while (auto arrival = acceptor_.take()) add(std::move(arrival->fd));
  } catch (const std::exception& error) {
    warnings_.warn(error.what());
  }
}

void StoreServer::Loop::add(UniqueFd fd) {
  const ConnectionId id = next_id_++;
  const auto [entry, inserted] = connections_.emplace(id, std::move(fd));
  entry->second.watched_events = EPOLLIN;
  watch(EPOLL_CTL_ADD, entry->second.fd(), EPOLLIN, id);
}

std::optional<Refusal> StoreServer::Loop::admit(const PeerIdentity& peer) {
  const bool is_full = connections_.size() >= options_.limits.connections;
  if (is_full && !close_idlest()) {
    return Refusal{ErrorKind::internal, fmt::format("the store server has reached its limit of {} connections, and all "
                                                    "of them are in use",
                                                    options_.limits.connections)};
  }
  return options_.admission ? options_.admission(peer) : std::nullopt;
}

// Clients keep connections for their next calls, and connect again if one was closed.
bool StoreServer::Loop::close_idlest() {
  auto idlest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    const StoreConnection& connection = each->second;
    if (connection.has_output() || machine_.is_needed(each->first)) continue;
    if (idlest == connections_.end() || connection.last_request < idlest->second.last_request) idlest = each;
  }
  if (idlest == connections_.end()) return false;
  close(idlest->first, "");
  return true;
}

void StoreServer::Loop::serve(ConnectionId id) {
  StoreConnection& connection = connections_.at(id);
  std::vector<StoreRequest> requests;
  try {
    connection.flush();
    requests = connection.read();
    connection.last_request = steady_clock().now();
    update_watch(id, connection);
    for (const StoreRequest& request : requests) {
      if (!connections_.contains(id)) return;  // it was closed while it was answered
      deliver(machine_.handle(id, request, steady_clock().now()));
    }
  } catch (const std::exception& failure) {
    if (connections_.contains(id)) close(id, reason_of(failure));
  }
}

void StoreServer::Loop::deliver(const std::vector<AddressedReply>& replies) {
  for (const auto& [to, reply] : replies) {
    const auto found = connections_.find(to);
    if (found == connections_.end()) continue;
    try {
      found->second.send(reply, options_.limits.output_bytes);
      update_watch(to, found->second);
    } catch (const std::exception& failure) {
      close(to, reason_of(failure));
    }
  }
}

void StoreServer::Loop::update_watch(ConnectionId id, StoreConnection& connection) {
  const std::uint32_t events = EPOLLIN | (connection.has_output() ? EPOLLOUT : 0u);
  if (events == connection.watched_events) return;
  watch(EPOLL_CTL_MOD, connection.fd(), events, id);
  connection.watched_events = events;
}

void StoreServer::Loop::close(ConnectionId id, std::string_view why) {
  const auto found = connections_.find(id);
  if (!why.empty()) warnings_.warn(fmt::format("closed the store connection of {}: {}", found->second.peer(), why));
  machine_.drop(id, steady_clock().now());
  connections_.erase(found);
}

StoreServer::StoreServer(const Endpoint& endpoint, StoreServerOptions options)
    : loop_(std::make_unique<Loop>(endpoint, std::move(options))) {}

StoreServer::~StoreServer() {
  // A forked child has no such thread to wait for, and the descriptor that ends it would end the parent's.
  if (!fork_guard_.is_here()) static_cast<void>(loop_.release());
}

std::uint64_t StoreServer::next_will() { return loop_->next_will(); }

bool StoreServer::wait_for_wills(Deadline deadline, std::uint64_t before) {
  return !fork_guard_.is_here() || loop_->wait_for_wills(deadline, before);
}

SocketAddress StoreServer::address() const { return loop_->listener().address(); }

}  // namespace lockstep::internal
