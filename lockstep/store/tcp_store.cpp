#include "lockstep/store/tcp_store.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lockstep/base/format.h"
#include "lockstep/net/framing.h"
#include "lockstep/net/socket.h"
#include "lockstep/store/store_text.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kIdleConnections = 8;
constexpr int kAttempts = 4;
// How long past the deadline the server's own "nobody has set it" may be under way.
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

HandshakeSettings on_store_channel(HandshakeSettings settings) {
  settings.channel = Channel::store;
  return settings;
}

}  // namespace

TcpStore::TcpStore(Endpoint server, HandshakeSettings settings)
    : server_(std::move(server)), settings_(on_store_channel(std::move(settings))), client_(random_number()) {}

std::string TcpStore::connect(Deadline deadline) {
  UniqueFd fd = take_connection(deadline);
  std::string host = local_address(fd.get()).host();
  give_back(std::move(fd));
  return host;
}

UniqueFd TcpStore::take_connection(Deadline deadline) {
  for (;;) {
    UniqueFd fd;
    {
      const std::lock_guard lock(mutex_);
      if (idle_.empty()) break;
      fd = std::move(idle_.back());
      idle_.pop_back();
    }
    // Nothing is owed on an idle connection: whatever can be read is its end.
    pollfd entry{fd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) == 0) return fd;
  }
  return open_connection(deadline);
}

UniqueFd TcpStore::open_connection(Deadline deadline) {
  for (int attempt = 1;; ++attempt) {
    const bool reached = reached_;
    UniqueFd fd = connect_tcp(server_, reached ? ConnectRetry::never : ConnectRetry::until_deadline, deadline);
    try {
      handshake_as_client(fd.get(), settings_, deadline);
      reached_ = true;
      return fd;
    } catch (const Error& error) {
      // A server under a flood of strangers may drop a newcomer, and one that is being restarted may just have gone.
      const bool again = error.kind() == ErrorKind::peer_lost && (!reached || attempt < kAttempts);
      if (!again || deadline.expired()) throw;
      ::poll(nullptr, 0, deadline.poll_timeout_ms(20));
    }
  }
}

void TcpStore::give_back(UniqueFd fd) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleConnections) idle_.push_back(std::move(fd));
}

StoreRequest TcpStore::request(StoreOp op, std::vector<std::string> keys) {
  for (const std::string& key : keys) check_store_key(key);
  StoreRequest request;
  request.op = op;
  request.client = client_;
  request.id = next_request_++;
  request.keys = std::move(keys);
  return request;
}

StoreReply TcpStore::exchange(int fd, const StoreRequest& request, Deadline deadline) {
  StoreRequest sent = request;
  if (waits(request.op)) sent.timeout = deadline.remaining();
  send_frame(fd, encode(sent), kMaxStoreFrameBytes, deadline);
  const Deadline reply_deadline = waits(request.op) ? with_grace(deadline) : deadline;
  StoreReply reply = decode_store_reply(recv_frame(fd, kMaxStoreFrameBytes, reply_deadline));
  if (reply.id != request.id) throw Error(ErrorKind::corrupt_data, "the store server answered another request");
  return reply;
}

StoreReply TcpStore::call(const StoreRequest& request, Deadline deadline) {
  const TimePoint start = steady_clock().now();
  for (int attempt = 1;; ++attempt) {
    bool connected = false;
    try {
      UniqueFd fd = take_connection(deadline);
      connected = true;
      StoreReply reply = exchange(fd.get(), request, deadline);
      give_back(std::move(fd));
      if (reply.status == StoreStatus::error) {
        throw Error(reply.kind, reply.value, {.operation = std::string(to_string(request.op))});
      }
      return reply;
    } catch (const Error& error) {
      const bool again =
          connected && error.kind() == ErrorKind::peer_lost && attempt < kAttempts && !deadline.expired();
      if (!again) throw explain(error, request, steady_clock().now() - start);
    }
  }
}

Error TcpStore::explain(const Error& error, const StoreRequest& request, Duration elapsed) const {
  ErrorDetail detail = error.detail();
  if (!detail.operation.empty()) return error;  // the server's own words about the request
  detail.operation = to_string(request.op);
  detail.elapsed_seconds = seconds(elapsed);
  const std::string what = fmt::format("store {} of {} failed after {:.1f} s", detail.operation,
                                       list_keys(request.keys), detail.elapsed_seconds);
  if (error.kind() == ErrorKind::timeout && reached_) {
    return Error(ErrorKind::timeout,
                 fmt::format("{}: the store server at {} did not answer ({})", what, to_string(server_), error.what()),
                 detail);
  }
  if (error.kind() == ErrorKind::peer_lost) {
    return Error(
        ErrorKind::peer_lost,
        fmt::format("{}: the store server at {} is gone; the process that hosts it (rank 0 or the launcher) has "
                    "ended ({})",
                    what, to_string(server_), error.what()),
        detail);
  }
  return Error(error.kind(), error.what(), detail);
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
  const StoreReply reply = call(add, deadline);
  std::int64_t sum = 0;
  std::from_chars(reply.value.data(), reply.value.data() + reply.value.size(), sum);
  return sum;
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
    return call(request(StoreOp::wait, keys), deadline).keys;
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
