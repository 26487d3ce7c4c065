#include "lockstep/store/store_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/base/format.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/base/rate_limited_log.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/net/listener.h"
#include "lockstep/store/store_connection.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBindTimeout = 10s;
constexpr Duration kAcceptPause = 100ms;  // after running out of descriptors
constexpr auto kFailurePause = 10ms;      // after running out of memory
// How long a newcomer may take before the next one is let in over the limit of half-open connections in its place. A
// crowd of honest clients needs far less; strangers who say nothing hold up the queue for no more than this.
constexpr Duration kPatience = 20ms;
constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kWakerTag = 1;

// Why a connection is closed; empty if its client has closed it.
std::string reason_of(const std::exception& failure) {
  const auto* error = dynamic_cast<const Error*>(&failure);
  return error != nullptr && error->kind() == ErrorKind::peer_lost ? "" : failure.what();
}

}  // namespace

Admission admit_generation(std::uint64_t generation) {
  return [generation](const PeerIdentity& claims) -> std::optional<Refusal> {
    if (claims.generation == generation) return std::nullopt;
    return Refusal{
        ErrorKind::invalid_argument,
        fmt::format("this job is at generation {}, and {} came with generation {}; was the job restarted in between?",
                    generation, to_string(claims), claims.generation)};
  };
}

class StoreServer::Loop {
 public:
  Loop(const Endpoint& endpoint, StoreServerOptions options)
      : options_(std::move(options)),
        listener_(Listener::bind(endpoint, Deadline::after(kBindTimeout))),
        epoll_(PrivateFd::open([] { return ::epoll_create1(EPOLL_CLOEXEC); })),
        waker_(PrivateFd::open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
    if (!epoll_ || !waker_) throw system_error("making a store server's event queue failed", errno);
    watch(EPOLL_CTL_ADD, listener_.fd(), EPOLLIN, kListenerTag);
    watch(EPOLL_CTL_ADD, waker_.get(), EPOLLIN, kWakerTag);
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(waker_.get(), &one, sizeof one);
    thread_.join();
  }

  const Listener& listener() const { return listener_; }

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
  void accept_all();
  void pause_accepting(Deadline until);
  void resume_accepting();
  bool is_crowded() const { return half_open_.size() >= options_.limits.half_open; }
  ConnectionId in_the_way() const;
  void add(UniqueFd fd);
  void serve(ConnectionId id);
  void deliver(const std::vector<AddressedReply>& replies);
  void update_watch(ConnectionId id, StoreConnection& connection);
  void close(ConnectionId id, std::string_view why);
  void close_late_handshakes();
  void complain(std::string text) { complaints_.warn(std::move(text)); }
  void count_wills();
  std::optional<Refusal> admit(const PeerIdentity& claims);
  bool close_idlest();
  int next_timeout_ms() const;

  StoreServerOptions options_;
  Listener listener_;
  UniqueFd epoll_;
  UniqueFd waker_;
  StoreMachine machine_;
  Connections connections_;
  std::list<ConnectionId> half_open_;  // oldest first
  ConnectionId next_id_ = kWakerTag + 1;
  Deadline accept_again_ = Deadline::never();  // while accepting is paused
  bool paused_by_crowd_ = false;
  RateLimitedLog complaints_;  // a port scan must not fill the disk
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
  Deadline next = accept_again_;
  if (const auto expiry = machine_.next_expiry()) next = std::min(next, Deadline::at(*expiry));
  if (!half_open_.empty()) next = std::min(next, connections_.at(half_open_.front()).handshake_deadline());
  return next.poll_timeout_ms();
}

void StoreServer::Loop::run() {
  for (;;) {
    try {
      if (!run_once()) break;
    } catch (const std::exception& failure) {  // out of memory, most likely, and not while one client was served
      complain(failure.what());
      ::poll(nullptr, 0, kFailurePause / 1ms);
    }
  }
  // Nobody shall wait for a server that has ended.
  ::shutdown(listener_.fd(), SHUT_RDWR);
  connections_.clear();
}

// False when it is over.
bool StoreServer::Loop::run_once() {
  constexpr int kMaxEvents = 64;
  epoll_event events[kMaxEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kMaxEvents, next_timeout_ms());
  if (count < 0 && errno != EINTR) {
    complain(fmt::format("the store server stops: waiting for events: {}", std::strerror(errno)));
    return false;
  }
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[i].data.u64;
    if (tag == kWakerTag) return false;
    if (tag == kListenerTag) {
      accept_all();
    } else if (connections_.contains(tag)) {  // not closed by an earlier event of this batch
      serve(tag);
    }
  }
  close_late_handshakes();
  if (accept_again_.expired() || (paused_by_crowd_ && !is_crowded())) resume_accepting();
  deliver(machine_.expire(steady_clock().now()));
  count_wills();
  return true;
}

void StoreServer::Loop::count_wills() {
  const std::lock_guard lock(wills_mutex_);
  next_will_ = machine_.next_will();
  if (std::exchange(oldest_will_, machine_.oldest_will()) != oldest_will_) wills_changed_.notify_all();
}

void StoreServer::Loop::accept_all() {
  try {
    for (;;) {
      if (is_crowded()) {
        const Deadline oldest = connections_.at(in_the_way()).handshake_deadline();
        const Deadline patience = Deadline::at(oldest.when() - options_.limits.handshake + kPatience);
        if (!patience.expired()) {
          paused_by_crowd_ = true;
          return pause_accepting(patience);
        }
      }
      UniqueFd fd = listener_.accept();
      if (!fd) return;
      add(std::move(fd));
    }
  } catch (const std::exception& error) {
    // Out of descriptors or memory: those who are connected go on, newcomers wait in the kernel's queue.
    complain(error.what());
    pause_accepting(Deadline::after(kAcceptPause));
  }
}

// Of the half-open connections the one to close for the next: an honest client says something as soon as it has
// connected.
ConnectionId StoreServer::Loop::in_the_way() const {
  const auto silent =
      std::ranges::find_if(half_open_, [this](ConnectionId id) { return connections_.at(id).silent(); });
  return silent == half_open_.end() ? half_open_.front() : *silent;
}

void StoreServer::Loop::pause_accepting(Deadline until) {
  accept_again_ = until;
  watch(EPOLL_CTL_MOD, listener_.fd(), 0, kListenerTag);
}

void StoreServer::Loop::resume_accepting() {
  accept_again_ = Deadline::never();
  paused_by_crowd_ = false;
  watch(EPOLL_CTL_MOD, listener_.fd(), EPOLLIN, kListenerTag);
}

void StoreServer::Loop::add(UniqueFd fd) {
  if (is_crowded()) close(in_the_way(), "too many connections are still in their handshake, and this is the oldest");
  const HandshakeSettings settings{
      .token = options_.token, .job_id = options_.job_id, .channel = Channel::store, .mine = options_.claims};
  const ConnectionId id = next_id_++;
  auto handshake = Handshake::server(settings, [this](const PeerIdentity& claims) { return admit(claims); });
  const auto [entry, inserted] = connections_.emplace(
      std::piecewise_construct, std::forward_as_tuple(id),
      std::forward_as_tuple(std::move(fd), std::move(handshake), Deadline::after(options_.limits.handshake)));
  half_open_.push_back(id);
  entry->second.watched_events = EPOLLIN;
  watch(EPOLL_CTL_ADD, entry->second.fd(), EPOLLIN, id);
}

std::optional<Refusal> StoreServer::Loop::admit(const PeerIdentity& claims) {
  const bool is_full = connections_.size() - half_open_.size() >= options_.limits.connections;
  if (is_full && !close_idlest()) {
    return Refusal{ErrorKind::internal, fmt::format("the store server already has {} connections, its limit, and all "
                                                    "of them are in use",
                                                    options_.limits.connections)};
  }
  return options_.admission ? options_.admission(claims) : std::nullopt;
}

// Clients keep connections for their next calls. One that is closed meanwhile is made anew.
bool StoreServer::Loop::close_idlest() {
  auto idlest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    const StoreConnection& connection = each->second;
    if (connection.half_open() || connection.has_output() || machine_.is_needed(each->first)) continue;
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
    const bool was_half_open = connection.half_open();
    connection.flush();
    requests = connection.read();
    if (was_half_open && !connection.half_open()) half_open_.remove(id);
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

void StoreServer::Loop::close_late_handshakes() {
  while (!half_open_.empty() && connections_.at(half_open_.front()).handshake_deadline().expired()) {
    close(half_open_.front(), "it did not finish its handshake in time");
  }
}

void StoreServer::Loop::close(ConnectionId id, std::string_view why) {
  const auto found = connections_.find(id);
  if (!why.empty()) complain(fmt::format("closed the store connection of {}: {}", found->second.peer(), why));
  if (found->second.half_open()) half_open_.remove(id);
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
  return loop_->wait_for_wills(deadline, before);
}

SocketAddress StoreServer::address() const { return loop_->listener().address(); }

}  // namespace lockstep
