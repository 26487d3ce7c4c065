#include "lockstep/comm/store/tcp_store.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/store/store_text.h"

namespace lockstep {

using namespace internal;

namespace {

using namespace std::chrono_literals;

// Kept for further calls. Few calls block at the same time, and the server has to serve the connections of all ranks.
constexpr std::size_t kIdleConnections = 2;
constexpr int kMostDamaged = 3;  // handshakes or messages in one call
// How long a server that was reached before may be silent in a handshake before the connection counts as broken.
constexpr Duration kHandshakePatience = 3s;
// How long a broken connection of the last wills may delay a call.
constexpr Duration kWillsPatience = 1s;
constexpr Duration kFirstPause = 5ms;
constexpr Duration kLongestPause = 250ms;
// How long past the deadline the server's reply "nobody has set it" may take.
constexpr Duration kReplyGrace = 50ms;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  std::memcpy(&number, Token::generate().bytes().data(), sizeof number);
  return number;
}

bool waits(StoreOp op) { return op == StoreOp::get || op == StoreOp::wait; }

Deadline with_grace(Deadline deadline) {
  return deadline.is_never() ? deadline : Deadline::at(std::max(deadline.when(), steady_clock().now()) + kReplyGrace);
}

Error as(ErrorKind kind, const Error& error) { return Error(kind, error.what(), error.detail()); }

HandshakeSettings on_store_channel(HandshakeSettings settings) {
  settings.channel = Channel::store;
  return settings;
}

}  // namespace

TcpStore::TcpStore(Endpoint server, HandshakeSettings settings)
    : server_(std::move(server)), settings_(on_store_channel(std::move(settings))), client_(random_number()) {}

std::string TcpStore::connect(Deadline deadline) {
  fork_guard_.check("a connection to the store");
  Stage stage = Stage::connecting;
  UniqueFd fd = take_connection(deadline, stage);
  std::string host = local_address(fd.get()).host();
  give_back(std::move(fd));
  return host;
}

UniqueFd TcpStore::take_connection(Deadline deadline, Stage& stage) {
  for (;;) {
    UniqueFd fd;
    {
      const std::lock_guard lock(mutex_);
      if (idle_.empty()) break;
      fd = std::move(idle_.back());
      idle_.pop_back();
    }
    // An idle connection expects no bytes: if it is readable, it has ended.
    pollfd entry{fd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) == 0) {
      stage = Stage::connected;
      return fd;
    }
  }
  return open_connection(deadline, stage);
}

UniqueFd TcpStore::open_connection(Deadline deadline, Stage& stage) {
  for (Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    const bool reached = reached_;
    UniqueFd fd = connect_tcp(server_, reached ? ConnectRetry::unless_refused : ConnectRetry::until_deadline, deadline);
    stage = Stage::connected;
    const Deadline patience = reached ? std::min(deadline, Deadline::after(kHandshakePatience)) : deadline;
    try {
      PeerIdentity host = handshake_as_client(fd.get(), settings_, patience);
      reached_ = true;
      const std::lock_guard lock(mutex_);
      host_ = std::move(host);
      return fd;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::timeout && !deadline.expired()) throw as(ErrorKind::peer_lost, error);
      // A server that is flooded by strangers may drop a new connection, and a server that restarts may just have gone.
      if (reached || error.kind() != ErrorKind::peer_lost || deadline.expired()) throw;
      ::poll(nullptr, 0, deadline.poll_timeout_ms(static_cast<int>(pause / 1ms)));
    }
  }
}

void TcpStore::give_back(UniqueFd fd) {
  const std::lock_guard lock(mutex_);
  outage_.reset();
  if (idle_.size() < kIdleConnections) idle_.push_back(std::move(fd));
}

class TcpStore::Number {
 public:
  Number(TcpStore& store, StoreRequest& request) : store_(store), id_(0) {
    const std::lock_guard lock(store.mutex_);
    request.id = store.next_request_++;
    if (!changes_state(request.op)) return;
    id_ = request.id;
    store.pending_.insert(id_);
    request.ended = *store.pending_.begin();
  }
  ~Number() {
    if (id_ == 0) return;
    const std::lock_guard lock(store_.mutex_);
    store_.pending_.erase(id_);
  }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;

 private:
  TcpStore& store_;
  std::uint64_t id_;  // 0: nothing to end
};

StoreRequest TcpStore::request(StoreOp op, std::vector<std::string> keys) {
  for (const std::string& key : keys) check_store_key(key);
  StoreRequest request;
  request.op = op;
  request.client = client_;
  request.keys = std::move(keys);
  return request;
}

StoreReply TcpStore::exchange(int fd, const StoreRequest& request, Deadline deadline) {
  StoreRequest sent = request;
  if (waits(request.op)) sent.timeout = deadline.remaining();
  send_frame(fd, encode(sent), kMaxStoreFrameBytes, deadline);
  const Deadline reply_deadline = waits(request.op) ? with_grace(deadline) : deadline;
  StoreReply reply = decode_store_reply(recv_frame(fd, kMaxStoreFrameBytes, reply_deadline));
  if (reply.id != request.id)
    throw Error(ErrorKind::corrupt_data, "the store server's reply does not match the request's id");
  return reply;
}

StoreReply TcpStore::attempt(const StoreRequest& request, Deadline deadline, Stage& stage) {
  UniqueFd fd = take_connection(deadline, stage);
  StoreReply reply = exchange(fd.get(), request, deadline);
  give_back(std::move(fd));
  if (reply.status == StoreStatus::error) {
    throw Error(reply.kind, reply.value, {.operation = std::string(to_string(request.op))});
  }
  return reply;
}

void TcpStore::note_failure(TimePoint since) {
  const std::lock_guard lock(mutex_);
  if (!outage_) outage_ = Outage{since, 0};
  ++outage_->attempts;
}

StoreReply TcpStore::call(StoreRequest request, Deadline deadline) {
  fork_guard_.check("a connection to the store");
  const TimePoint start = steady_clock().now();
  renew_wills(deadline);
  const Number number(*this, request);
  Duration pause = Duration::zero();
  for (int damaged = 0;;) {
    const bool reached = reached_;
    const TimePoint tried = steady_clock().now();
    Stage stage = Stage::connecting;
    try {
      return attempt(request, deadline, stage);
    } catch (const Error& error) {
      if (!error.detail().operation.empty()) throw;  // the server's own answer to the request
      note_failure(tried);
      const TimePoint now = steady_clock().now();
      const bool is_cut = error.kind() == ErrorKind::peer_lost && (stage == Stage::connected || !reached);
      // On a connection that worked before, a flipped bit looks like a wrong token or a broken message.
      const bool is_damaged = error.kind() == ErrorKind::corrupt_data || error.kind() == ErrorKind::unauthorized;
      if (is_damaged) ++damaged;
      if (is_cut && deadline.expired(now)) throw explain(as(ErrorKind::timeout, error), request, now - start);
      const bool again = is_cut || (is_damaged && reached_ && damaged < kMostDamaged);
      if (!again || deadline.expired(now)) throw explain(error, request, now - start);
    }
    ::poll(nullptr, 0, deadline.poll_timeout_ms(static_cast<int>(pause / 1ms)));
    pause = std::clamp(pause * 2, kFirstPause, kLongestPause);
    request.age = std::max<Duration>(steady_clock().now() - start, 1ns);
  }
}

Error TcpStore::explain(const Error& error, const StoreRequest& request, Duration elapsed) {
  ErrorDetail detail = error.detail();
  detail.operation = to_string(request.op);
  detail.elapsed_seconds = seconds(elapsed);
  const std::string what = fmt::format("store {} of {} failed after {:.1f} s", detail.operation,
                                       list_keys(request.keys), detail.elapsed_seconds);
  if (error.kind() == ErrorKind::timeout && reached_) {
    const std::lock_guard lock(mutex_);
    const Outage outage = outage_.value_or(Outage{steady_clock().now(), 0});
    return Error(ErrorKind::timeout,
                 fmt::format("{}: the store server at {} has not answered for {:.1f} s, in {} {} ({})", what,
                             to_string(server_), seconds(steady_clock().now() - outage.since), outage.attempts,
                             outage.attempts == 1 ? "attempt" : "attempts", error.what()),
                 detail);
  }
  if (error.kind() == ErrorKind::peer_lost) {
    if (const std::lock_guard lock(mutex_); host_) detail.peer = host_->rank;
    return Error(ErrorKind::peer_lost,
                 fmt::format("{}: the store server at {} is gone; {}, which hosts it, has ended ({})", what,
                             to_string(server_), host(), error.what()),
                 detail);
  }
  return Error(error.kind(), error.what(), detail);
}

std::string TcpStore::host() {
  const std::lock_guard lock(mutex_);
  if (!host_) return "the process";
  return host_->rank < 0 ? fmt::format("the launcher ({})", to_string(*host_)) : to_string(*host_);
}

void TcpStore::last_will(std::string_view key, ByteView value, Deadline deadline) {
  fork_guard_.check("a connection to the store");
  check_store_key(key);
  const std::lock_guard lock(wills_mutex_);
  const auto earlier = wills_.find(std::string(key));
  const std::optional<Will> before = earlier == wills_.end() ? std::nullopt : std::optional(earlier->second);
  wills_.insert_or_assign(std::string(key), Will{Bytes(value), false});
  try {
    send_wills(deadline);
  } catch (const Error& error) {
    StoreRequest failed = request(StoreOp::last_will, {std::string(key)});
    // The server may have either: sent again, it has the earlier one.
    wills_.erase(std::string(key));
    if (before) wills_.emplace(std::string(key), Will{before->value, false});
    throw error.detail().operation.empty() ? explain(error, failed, Duration::zero()) : error;
  }
}

// REQUIRES: wills_mutex_ is held.
void TcpStore::send_wills(Deadline deadline) {
  for (;;) {
    Stage stage = Stage::connecting;
    try {
      if (!wills_fd_) {
        for (auto& [key, will] : wills_) will.is_sent = false;
        wills_fd_ = open_connection(deadline, stage);
      }
      stage = Stage::connected;
      for (auto will = wills_.begin(); will != wills_.end();) {
        if (!will->second.is_sent) send_will(will->first, will->second, deadline);
        will = will->second.value.empty() ? wills_.erase(will) : std::next(will);
      }
      if (wills_.empty()) wills_fd_.reset();
      return;
    } catch (const Error& error) {
      wills_fd_.reset();
      if (error.kind() != ErrorKind::peer_lost || stage == Stage::connecting || deadline.expired()) throw;
    }
    ::poll(nullptr, 0, deadline.poll_timeout_ms(static_cast<int>(kFirstPause / 1ms)));
  }
}

void TcpStore::send_will(const std::string& key, Will& will, Deadline deadline) {
  StoreRequest sent = request(StoreOp::last_will, {key});
  const Number number(*this, sent);
  sent.value = will.value;
  const StoreReply reply = exchange(wills_fd_.get(), sent, deadline);
  if (reply.status == StoreStatus::error) {
    throw Error(reply.kind, reply.value, {.operation = std::string(to_string(sent.op))});
  }
  will.is_sent = true;
}

// The server must not take a broken connection for a process that has died.
void TcpStore::renew_wills(Deadline deadline) noexcept {
  const std::unique_lock lock(wills_mutex_, std::try_to_lock);
  if (!lock || wills_.empty()) return;
  pollfd entry{wills_fd_.get(), POLLIN, 0};
  if (wills_fd_ && ::poll(&entry, 1, 0) == 0) return;
  wills_fd_.reset();
  try {
    send_wills(std::min(deadline, Deadline::after(kWillsPatience)));
  } catch (const Error&) {  // the call itself will report it
  }
}

void TcpStore::set(std::string_view key, ByteView value, Deadline deadline) {
  check_store_value(key, value);
  StoreRequest set = request(StoreOp::set, {std::string(key)});
  set.value = value;
  call(set, deadline);
}

Bytes TcpStore::get(std::string_view key, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  StoreReply reply = call(request(StoreOp::get, {std::string(key)}), deadline);
  if (reply.status == StoreStatus::missing) throw missing_keys_error("get", reply.keys, steady_clock().now() - start);
  return std::move(reply.value);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  StoreRequest add = request(StoreOp::add, {std::string(key)});
  add.delta = delta;
  return checked_decimal(call(add, deadline).value, "sum", "a store reply");
}

Bytes TcpStore::compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) {
  check_store_value(key, expected);
  check_store_value(key, desired);
  StoreRequest compare = request(StoreOp::compare_set, {std::string(key)});
  compare.expected = expected;
  compare.value = desired;
  return call(compare, deadline).value;
}

std::vector<std::string> TcpStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  try {
    std::vector<std::string> missing = call(request(StoreOp::wait, keys), deadline).keys;
    check_subsequence(missing, keys, "missing key", "a store reply");
    return missing;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;
    return keys;  // the server itself did not answer
  }
}

bool TcpStore::check(const std::vector<std::string>& keys, Deadline deadline) {
  return call(request(StoreOp::check, keys), deadline).value == "1";
}

bool TcpStore::remove(std::string_view key, Deadline deadline) {
  return call(request(StoreOp::remove, {std::string(key)}), deadline).value == "1";
}

}  // namespace lockstep
