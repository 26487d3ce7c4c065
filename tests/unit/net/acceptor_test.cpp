// Strangers at a port where ranks are expected.
#include "lockstep/comm/net/acceptor.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "lockstep/comm/net/socket.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_directory.h"

namespace acceptor_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }

struct Fixture {
  explicit Fixture(Admission admission = [](const PeerIdentity&) { return std::nullopt; })
      : acceptor("the test", listen(), settings(), std::move(admission)),
        endpoint(acceptor.listeners().front().address().endpoint()) {}

  static std::vector<Listener> listen() {
    std::vector<Listener> listeners;
    listeners.push_back(Listener::bind({"127.0.0.1", 0}, soon()));
    return listeners;
  }
  HandshakeSettings settings(int rank = -1) const {
    return {.token = token, .job_id = "job", .channel = Channel::link, .mine = local_identity(rank, 2, 0)};
  }
  UniqueFd stranger() const { return connect_tcp(endpoint, ConnectRetry::never, soon()); }
  // As ranks do: a handshake that breaks off is made again.
  void come(int rank) const {
    for (;;) {
      const UniqueFd fd = stranger();
      try {
        handshake_as_client(fd.get(), settings(rank), soon());
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer_lost) throw;
      }
    }
  }

  Token token = Token::generate();
  Acceptor acceptor;
  Endpoint endpoint;
};

// What standard error gets meanwhile.
class Log {
 public:
  Log() : before_(::dup(STDERR_FILENO)), file_(::open(directory_.path().c_str(), O_TMPFILE | O_RDWR, 0600)) {
    ::dup2(file_.get(), STDERR_FILENO);
  }
  ~Log() { ::dup2(before_.get(), STDERR_FILENO); }
  std::size_t lines() const {
    char buffer[1 << 16];
    const ssize_t got = ::pread(file_.get(), buffer, sizeof buffer, 0);
    return static_cast<std::size_t>(std::count(buffer, buffer + std::max<ssize_t>(got, 0), '\n'));
  }

 private:
  TemporaryDirectory directory_;
  UniqueFd before_;
  UniqueFd file_;
};

}  // namespace

TEST_CASE("who proves to belong arrives with its identity, who does not is closed") {
  Fixture fixture([](const PeerIdentity& peer) -> std::optional<Refusal> {
    if (peer.rank == 1) return std::nullopt;
    return Refusal{ErrorKind::invalid_argument, "not you"};
  });
  std::thread others([&] {
    CHECK_ERROR(error_of([&] { fixture.come(0); }), ErrorKind::invalid_argument, "not you");
    const UniqueFd rude = fixture.stranger();
    send_all(rude.get(), as_span(ByteView("GET / HTTP/1.0")), soon());
    fixture.come(1);
  });
  const auto arrival = fixture.acceptor.next(soon());
  others.join();
  REQUIRE(arrival);
  CHECK(arrival->peer.rank == 1);
  CHECK(arrival->peer.pid == static_cast<std::uint32_t>(::getpid()));
  CHECK_FALSE(fixture.acceptor.next(Deadline::after(1ms)));
}

TEST_CASE("3,000 silent strangers, who come again when they are closed, keep no honest rank waiting") {
  Fixture fixture;
  rlimit limits{};
  ::getrlimit(RLIMIT_NOFILE, &limits);
  const rlim_t before = limits.rlim_cur;
  limits.rlim_cur = std::min<rlim_t>(limits.rlim_max, 8192);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limits) == 0);
  const std::size_t crowd = std::min<std::size_t>(3000, limits.rlim_cur - 256);
  const Log log;
  std::vector<UniqueFd> strangers;
  const auto come = [&](UniqueFd& fd) {
    fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const SocketAddress address = fixture.acceptor.listeners().front().address();
    [[maybe_unused]] const int begun = ::connect(fd.get(), address.data(), address.length());
  };
  strangers.resize(crowd);
  for (UniqueFd& each : strangers) come(each);
  std::atomic<bool> stop{false};
  std::thread returning([&] {
    while (!stop) {
      for (UniqueFd& each : strangers) {
        char byte = 0;
        if (::recv(each.get(), &byte, 1, MSG_DONTWAIT) == 0) come(each);
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  const TimePoint start = steady_clock().now();
  std::thread honest([&] { fixture.come(1); });
  const auto arrival = fixture.acceptor.next(soon());
  const double waited = seconds(steady_clock().now() - start);
  honest.join();
  stop = true;
  returning.join();
  strangers.clear();
  limits.rlim_cur = before;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limits) == 0);
  REQUIRE(arrival);
  CHECK(arrival->peer.rank == 1);
  CHECK(waited < 10);
  CHECK(static_cast<double>(log.lines()) <= waited + 2);
}

}  // namespace acceptor_test
