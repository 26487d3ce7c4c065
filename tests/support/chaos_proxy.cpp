#include "tests/support/chaos_proxy.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"

namespace lockstep::testing {

using namespace internal;

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kQueueBytes = std::size_t{1} << 20;  // of one way; more wait in the sender's kernel
constexpr Duration kConnectTimeout = 5s;

// One way of one connection.
struct Pipe {
  struct Piece {
    TimePoint due;
    Bytes bytes;
    std::size_t sent = 0;
  };
  int from = -1;
  int to = -1;
  Fault fault;  // none, unless it is for this way
  std::mt19937_64 random;
  std::deque<Piece> queue;
  std::size_t queued = 0;
  std::uint64_t received = 0;
  std::uint64_t passed = 0;
  TimePoint free_at = TimePoint::min();  // when the next piece may go, if bytes per second are limited
  bool ended = false;                    // no more bytes come
  bool end_passed_on = false;
};

enum class State { open, frozen, closed };

struct Connection {
  int number = 0;
  UniqueFd client;
  UniqueFd server;
  std::array<Pipe, 2> pipes;
  State state = State::open;
};

void reset(UniqueFd& fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fd.reset();
}

}  // namespace

class ChaosProxy::Loop {
 public:
  Loop(const Endpoint& target, ChaosPlan plan, const Endpoint& listen)
      : target_(target),
        plan_(std::move(plan)),
        listener_(Listener::bind(listen, Deadline::after(kConnectTimeout))),
        waker_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this](std::stop_token stop) { run(stop); }) {}

  ~Loop() {
    thread_.request_stop();
    wake();
  }

  void order(std::atomic<bool>& what, bool value) {
    what = value;
    wake();
  }

  Endpoint endpoint() const { return listener_.address().endpoint(); }

  std::uint64_t passed(int connection, Way way) {
    const std::lock_guard lock(mutex_);
    return passed_.at(static_cast<std::size_t>(connection))[static_cast<std::size_t>(way)];
  }

  std::atomic<bool> frozen{false};
  std::atomic<bool> refusing{false};
  std::atomic<bool> cutting{false};
  std::atomic<int> count{0};

 private:
  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(waker_.get(), &one, sizeof one);
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      await();
      if (cutting.exchange(false)) {
        for (Connection& each : connections_) close_with_reset(each);
      }
      while (UniqueFd fd = listener_.accept()) take_in(std::move(fd));
      if (frozen) continue;
      for (Connection& each : connections_) {
        for (Pipe& pipe : each.pipes) {
          if (each.state == State::open) receive(each, pipe);
          if (each.state == State::open) forward(each, pipe);
        }
        if (each.pipes[0].end_passed_on && each.pipes[1].end_passed_on) each.state = State::closed;
      }
      std::erase_if(connections_, [](const Connection& each) { return each.state == State::closed; });
    }
  }

  void await() {
    std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    Deadline next = Deadline::never();
    const TimePoint now = steady_clock().now();
    for (const Connection& each : connections_) {
      if (frozen || each.state != State::open) continue;
      for (const Pipe& pipe : each.pipes) {
        if (!pipe.ended && pipe.queued < kQueueBytes) polled.push_back({pipe.from, POLLIN, 0});
        if (pipe.queue.empty()) continue;
        const TimePoint due = std::max(pipe.queue.front().due, pipe.free_at);
        if (due <= now) {
          polled.push_back({pipe.to, POLLOUT, 0});
        } else {
          next = std::min(next, Deadline::at(due));
        }
      }
    }
    ::poll(polled.data(), polled.size(), next.poll_timeout_ms());
    std::uint64_t orders = 0;
    [[maybe_unused]] const ssize_t count = ::read(waker_.get(), &orders, sizeof orders);
  }

  void take_in(UniqueFd fd) {
    const int number = count;
    {
      const std::lock_guard lock(mutex_);
      passed_.emplace_back();
    }
    ++count;
    if (refusing) return reset(fd);
    try {
      UniqueFd server = connect_tcp(target_, ConnectRetry::never, Deadline::after(kConnectTimeout));
      Connection& made = connections_.emplace_back();
      made.number = number;
      made.client = std::move(fd);
      made.server = std::move(server);
      const Fault fault = plan_.fault ? plan_.fault(number) : Fault();
      for (const Way way : {Way::to_server, Way::to_client}) {
        Pipe& pipe = made.pipes[static_cast<std::size_t>(way)];
        const bool up = way == Way::to_server;
        pipe.from = up ? made.client.get() : made.server.get();
        pipe.to = up ? made.server.get() : made.client.get();
        if (fault.way == way) pipe.fault = fault;
        pipe.random.seed(plan_.seed * 1'000'003 + static_cast<std::uint64_t>(number) * 2 + (up ? 0 : 1));
        strike(made, pipe);
      }
    } catch (const Error&) {
      reset(fd);  // the server is gone, and so is the proxy for its client
    }
  }

  void close_with_reset(Connection& connection) {
    reset(connection.client);
    reset(connection.server);
    connection.state = State::closed;
  }

  void receive(Connection& connection, Pipe& pipe) {
    char buffer[16 << 10];
    while (!pipe.ended && pipe.queued < kQueueBytes) {
      const ssize_t got = ::recv(pipe.from, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got < 0) return close_with_reset(connection);
      if (got == 0) {
        pipe.ended = true;
        return;
      }
      cut_into_pieces(pipe, ByteView(buffer, static_cast<std::size_t>(got)));
    }
  }

  void cut_into_pieces(Pipe& pipe, ByteView bytes) {
    const TimePoint now = steady_clock().now();
    while (!bytes.empty()) {
      std::size_t size = std::min<std::size_t>(bytes.size(), 1 + pipe.random() % plan_.largest_piece_bytes);
      if (pipe.fault.kind != Fault::Kind::none && pipe.fault.at > pipe.received) {
        size = std::min<std::size_t>(size, pipe.fault.at - pipe.received);
      }
      Pipe::Piece piece{now + plan_.delay, Bytes(bytes.substr(0, size)), 0};
      if (plan_.jitter > Duration::zero()) {
        piece.due +=
            Duration(static_cast<std::int64_t>(pipe.random() % static_cast<std::uint64_t>(plan_.jitter.count())));
      }
      if (!pipe.queue.empty()) piece.due = std::max(piece.due, pipe.queue.back().due);
      if (pipe.fault.kind == Fault::Kind::flip && pipe.fault.at == pipe.received) {
        piece.bytes[0] = static_cast<char>(piece.bytes[0] ^ (1 << (plan_.seed + pipe.fault.at) % 8));
      }
      pipe.received += size;
      pipe.queued += size;
      pipe.queue.push_back(std::move(piece));
      bytes.remove_prefix(size);
    }
  }

  void forward(Connection& connection, Pipe& pipe) {
    while (!pipe.queue.empty()) {
      Pipe::Piece& piece = pipe.queue.front();
      const TimePoint now = steady_clock().now();
      if (piece.due > now || pipe.free_at > now) return;
      // Together, so that whoever has received the bytes finds them counted.
      std::unique_lock lock(mutex_);
      if (!pipe.end_passed_on) {  // else the bytes are sent in vain
        const ByteView left = ByteView(piece.bytes).substr(piece.sent);
        const ssize_t sent = ::send(pipe.to, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent < 0) return close_with_reset(connection);
        piece.sent += static_cast<std::size_t>(sent);
        if (piece.sent < piece.bytes.size()) continue;
      }
      pipe.passed += piece.bytes.size();
      passed_.at(static_cast<std::size_t>(connection.number)) = {connection.pipes[0].passed,
                                                                 connection.pipes[1].passed};
      lock.unlock();
      if (plan_.bytes_per_second != 0) {
        pipe.free_at = std::max(pipe.free_at, now) +
                       std::chrono::nanoseconds(std::chrono::seconds(1)) * piece.bytes.size() / plan_.bytes_per_second;
      }
      pipe.queued -= piece.bytes.size();
      pipe.queue.pop_front();
      strike(connection, pipe);
      if (connection.state != State::open) return;
    }
    if (pipe.ended && !pipe.end_passed_on) {
      ::shutdown(pipe.to, SHUT_WR);
      pipe.end_passed_on = true;
    }
  }

  // Does to the connection what its fault says, once as many bytes have passed.
  void strike(Connection& connection, Pipe& pipe) {
    if (pipe.passed != pipe.fault.at) return;
    switch (pipe.fault.kind) {
      case Fault::Kind::none:
      case Fault::Kind::flip: return;
      case Fault::Kind::cut:
        connection.client.reset();
        connection.server.reset();
        connection.state = State::closed;
        return;
      case Fault::Kind::reset: return close_with_reset(connection);
      case Fault::Kind::freeze: connection.state = State::frozen; return;
      case Fault::Kind::half_close:
        ::shutdown(pipe.to, SHUT_WR);
        pipe.end_passed_on = true;
        return;
    }
  }

  const Endpoint target_;
  const ChaosPlan plan_;
  Listener listener_;
  UniqueFd waker_;
  std::list<Connection> connections_;
  std::mutex mutex_;
  std::vector<std::array<std::uint64_t, 2>> passed_;  // guarded by mutex_
  std::jthread thread_;
};

ChaosProxy::ChaosProxy(const Endpoint& target, ChaosPlan plan, const Endpoint& listen)
    : loop_(std::make_unique<Loop>(target, std::move(plan), listen)) {}

ChaosProxy::~ChaosProxy() = default;

std::uint64_t ChaosProxy::passed(int connection, Way way) const { return loop_->passed(connection, way); }

Endpoint ChaosProxy::endpoint() const { return loop_->endpoint(); }
int ChaosProxy::connections() const { return loop_->count; }
void ChaosProxy::freeze() { loop_->order(loop_->frozen, true); }
void ChaosProxy::thaw() { loop_->order(loop_->frozen, false); }
void ChaosProxy::cut_all() { loop_->order(loop_->cutting, true); }
void ChaosProxy::refuse() { loop_->order(loop_->refusing, true); }

}  // namespace lockstep::testing
