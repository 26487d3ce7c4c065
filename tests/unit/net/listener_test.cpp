#include "lockstep/comm/net/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/socket.h"
#include "tests/support/accepted.h"
#include "tests/support/expect_error.h"

namespace listener_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(5s); }

// The local addresses, as the kernel prints them, of all sockets that listen on a port.
std::vector<std::string> listening_addresses(std::uint16_t port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream columns(line);
      std::string slot, local, remote, state;
      columns >> slot >> local >> remote >> state;
      const std::string suffix = fmt::format(":{:04X}", port);
      if (state == "0A" && local.ends_with(suffix)) found.push_back(local.substr(0, local.size() - suffix.size()));
    }
  }
  return found;
}

}  // namespace

// fault: S5
TEST_CASE("the kernel's table shows exactly the address that was asked for") {
  const struct {
    const char* host;
    const char* shown;
  } cases[] = {
      {"127.0.0.1", "0100007F"},
      {"127.0.0.2", "0200007F"},
      {"localhost", "0100007F"},
      {"0.0.0.0", "00000000"},
      {"::1", "00000000000000000000000001000000"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.host);
    const Listener listener = Listener::bind({test.host, 0}, soon());
    CHECK(listening_addresses(listener.address().port()) == std::vector<std::string>{test.shown});
  }
}

// fault: 39
TEST_CASE("a taken port is an error at once that names address, port and holder") {
  const Listener holder = Listener::bind({"127.0.0.1", 0}, soon());
  const Endpoint endpoint = holder.address().endpoint();
  const auto start = steady_clock().now();
  const auto error = error_of([&] { Listener::bind(endpoint, Deadline::after(1h)); });
  CHECK(steady_clock().now() - start < 4s);
  CHECK_ERROR(error, ErrorKind::invalid_argument, to_string(endpoint), fmt::format("port {} is in use", endpoint.port),
              fmt::format("process {} (unit_net)", ::getpid()));
}

// fault: S5
TEST_CASE("an address of another host is refused, not replaced by one of this host") {
  // 192.0.2.0/24 is set aside for documentation.
  const auto error = error_of([] { Listener::bind({"192.0.2.1", 0}, soon()); });
  CHECK_ERROR(error, ErrorKind::invalid_argument, "192.0.2.1:0", "no such address");
}

TEST_CASE("a port can be bound again right after its listener and connections are closed") {
  Endpoint endpoint;
  {
    Listener listener = Listener::bind({"127.0.0.1", 0}, soon());
    endpoint = listener.address().endpoint();
    const UniqueFd client = connect_tcp(endpoint, ConnectRetry::never, soon());
    const UniqueFd server = testing::accepted(listener, soon());
  }
  CHECK(Listener::bind(endpoint, soon()).address().endpoint() == endpoint);
}

TEST_CASE("accepting does not wait") {
  Listener listener = Listener::bind({"127.0.0.1", 0}, soon());
  CHECK_FALSE(listener.accept());
}

// fault: 48
TEST_CASE("whoever says nothing is not in front of who speaks") {
  Listener listener = Listener::bind({"127.0.0.1", 0}, soon());
  const Endpoint endpoint = listener.address().endpoint();
  const auto come = [&] { return connect_tcp(endpoint, ConnectRetry::never, soon()); };
  for (;;) {
    const TimePoint start = steady_clock().now();
    const UniqueFd silent = come(), speaker = come();
    send_all(speaker.get(), as_span(ByteView("hello")), soon());
    const UniqueFd first = testing::accepted(listener, soon());
    // The kernel keeps the silent one for a second.
    if (steady_clock().now() - start > 500ms) continue;
    char text[6] = "";
    CHECK(::recv(first.get(), text, 5, MSG_DONTWAIT) == 5);
    CHECK(std::string(text) == "hello");
    CHECK(testing::accepted(listener, soon()));
    return;
  }
}

}  // namespace listener_test
