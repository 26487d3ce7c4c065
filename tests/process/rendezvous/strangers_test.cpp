// A store server in a process of its own, and those who are no clients of it.
#include <poll.h>
#include <sys/socket.h>

#include <fstream>
#include <sstream>

#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/store/tcp_store.h"
#include "tests/process/rendezvous/worker_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/seconds_of.h"
#include "tests/support/temporary_directory.h"

namespace strangers_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }

struct Served {
  Served() : process({"serve"}, {{"LOCKSTEP_TOKEN_FILE", write_token()}}) {
    endpoint = {"127.0.0.1", parse_port(process.line(), "the worker's port")};
  }
  std::string write_token() {
    const std::string path = directory / "token";
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::string digits(2 * Token::kBytes, 'c');
    if (::write(fd.get(), digits.data(), digits.size()) < 0) throw system_error("writing the token", errno);
    token = Token::from_file(path);
    return path;
  }
  TcpStore client() const {
    return TcpStore(endpoint,
                    {.token = token, .job_id = "default", .channel = Channel::store, .mine = local_identity(0, 1, 0)});
  }
  long resident_kib() const {
    std::ifstream file("/proc/" + std::to_string(process.pid()) + "/status");
    std::string word;
    while (file >> word) {
      long kib = 0;
      if (word == "VmRSS:" && file >> kib) return kib;
    }
    return -1;
  }

  TemporaryDirectory directory;
  Token token;
  WorkerProcess process;
  Endpoint endpoint;
};

bool closed_before(int fd, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    char buffer[256];
    if (::poll(&entry, 1, deadline.poll_timeout_ms()) > 0 && ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) <= 0)
      return true;
    if (deadline.expired()) return false;
  }
}

}  // namespace

// fault: 14
TEST_CASE("no call on a frozen server lasts longer than its deadline and 0.1 s") {
  Served served;
  TcpStore store = served.client();
  store.set("k", "v", soon());
  served.process.stop();
  std::vector<double> waits;
  const auto timed = [&waits](auto call) {
    waits.push_back(seconds_of([&] { CHECK(error_of(call).kind() == ErrorKind::timeout); }));
    CHECK(waits.back() >= 0.2);
    CHECK(waits.back() < 10);
  };
  const auto limit = [] { return Deadline::after(200ms); };
  timed([&] { store.get("k", limit()); });
  timed([&] { store.set("k", "v", limit()); });
  timed([&] { store.set("big", Bytes(kMaxStoreValueBytes, 'x'), limit()); });
  timed([&] { store.add("n", 1, limit()); });
  timed([&] { store.compare_set("k", "v", "w", limit()); });
  timed([&] { store.check({"k"}, limit()); });
  timed([&] { store.remove("k", limit()); });
  waits.push_back(seconds_of([&] { CHECK(store.wait({"k"}, limit()).size() == 1); }));
  TcpStore fresh = served.client();  // has no connection yet
  timed([&] { fresh.get("k", limit()); });
  CHECK(median_of(waits) < 0.3 + 0.3);  // the promise is 0.3; the rest is for a busy machine

  served.process.send_signal(SIGCONT);
  CHECK(store.check({"k"}, soon()) == fresh.check({"k"}, soon()));
  CHECK(store.add("after", 1, soon()) == 1);
  CHECK(served.process.exit_code() == 0);
}

TEST_CASE("300 silent strangers are gone after about two seconds, and meanwhile a client works") {
  Served served;
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_tcp(served.endpoint, ConnectRetry::never, soon()));
  const TimePoint start = steady_clock().now();
  TcpStore store = served.client();
  store.set("k", "v", soon());
  CHECK(steady_clock().now() - start < 10s);
  for (int i = 0; i < 100; ++i) store.add("n", 1, soon());
  const Deadline limit = Deadline::after(5s);
  for (const UniqueFd& stranger : strangers) CHECK(closed_before(stranger.get(), limit));
  CHECK(store.get("n", soon()) == "100");
}

TEST_CASE("garbage and huge lengths cost the server a connection and no memory") {
  Served served;
  TcpStore store = served.client();
  store.set("k", "v", soon());
  const long before = served.resident_kib();
  for (int i = 0; i < 50; ++i) {
    const UniqueFd scanner = connect_tcp(served.endpoint, ConnectRetry::never, soon());
    send_all(scanner.get(), as_span(ByteView("GET / HTTP/1.0\r\n\r\n")), soon());
    CHECK(closed_before(scanner.get(), soon()));

    const UniqueFd insider = connect_tcp(served.endpoint, ConnectRetry::never, soon());
    handshake_as_client(insider.get(),
                        {.token = served.token, .job_id = "default", .channel = Channel::store, .mine = {}}, soon());
    Bytes huge;
    put_u32(huge, 0xffffffff - static_cast<std::uint32_t>(i));
    send_all(insider.get(), as_span(ByteView(huge)), soon());
    CHECK(closed_before(insider.get(), soon()));
  }
  CHECK(served.resident_kib() - before < 32 << 10);
  CHECK(store.get("k", soon()) == "v");
}

TEST_CASE("the server listens on the one address that it was told") {
  Served served;
  std::ostringstream tables;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) tables << std::ifstream(table).rdbuf();
  std::istringstream lines(tables.str());
  std::string line;
  int listeners = 0;
  char port[8];
  std::snprintf(port, sizeof port, ":%04X", served.endpoint.port);
  while (std::getline(lines, line)) {
    std::istringstream columns(line);
    std::string slot, local, remote, state;
    columns >> slot >> local >> remote >> state;
    if (state != "0A" || !local.ends_with(port)) continue;
    CHECK(local == std::string("0100007F") + port);
    ++listeners;
  }
  CHECK(listeners == 1);
}

}  // namespace strangers_test
