#include "lockstep/net/unix_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <future>

#include "lockstep/base/format.h"
#include "lockstep/net/socket.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"

using namespace lockstep;
using namespace std::chrono_literals;

namespace {
Deadline soon() { return Deadline::after(5s); }
std::string test_name() { return fmt::format("lockstep-test-{}", ::getpid()); }
}  // namespace

TEST_CASE("two processes of one user meet under an abstract name") {
  const UniqueFd listener = unix_listen(test_name());
  auto accepting = std::async(std::launch::async, [&] { return unix_accept(listener.get(), soon()); });
  const UniqueFd client = unix_connect(test_name(), soon());
  const UniqueFd server = accepting.get();
  CHECK(peer_credentials(server.get()).pid == ::getpid());
  CHECK(peer_credentials(client.get()).uid == ::geteuid());
  CHECK(describe_peer(server.get()) == fmt::format("process {} of user {} (unix socket)", ::getpid(), ::geteuid()));
}

TEST_CASE("a taken, empty or over-long name is refused") {
  const UniqueFd listener = unix_listen(test_name());
  CHECK_ERROR(error_of([] { unix_listen(test_name()); }), ErrorKind::invalid_argument, test_name(), "taken");
  CHECK_ERROR(error_of([] { unix_listen(""); }), ErrorKind::invalid_argument, "1 to 100 bytes");
  CHECK_ERROR(error_of([] { unix_connect(std::string(101, 'x'), soon()); }), ErrorKind::invalid_argument, "101");
}

TEST_CASE("connecting waits for the listener and both sides end at their deadlines") {
  auto connecting = std::async(std::launch::async, [] { return unix_connect(test_name(), soon()); });
  CHECK(connecting.wait_for(20ms) == std::future_status::timeout);
  const UniqueFd listener = unix_listen(test_name());
  CHECK(unix_accept(listener.get(), soon()));
  CHECK(connecting.get());
  CHECK(error_of([&] { unix_accept(listener.get(), Deadline::after(20ms)); }).kind() == ErrorKind::timeout);
  CHECK_ERROR(error_of([] { unix_connect("lockstep-test-nobody", Deadline::after(20ms)); }), ErrorKind::timeout,
              "@lockstep-test-nobody");
}

TEST_CASE("a descriptor travels, close-on-exec, and everything else in its place is refused") {
  auto [left, right] = make_socket_pair();
  UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::pwrite(memory.get(), "shared", 6, 0) == 6);
  send_fd(left.get(), memory.get(), soon());
  memory.reset();
  const UniqueFd received = recv_fd(right.get(), soon());
  char text[6] = "";
  CHECK(::pread(received.get(), text, 6, 0) == 6);
  CHECK(std::string_view(text, 6) == "shared");
  CHECK((::fcntl(received.get(), F_GETFD) & FD_CLOEXEC) != 0);

  CHECK(error_of([&] { recv_fd(right.get(), Deadline::after(20ms)); }).kind() == ErrorKind::timeout);
  send_all(left.get(), as_span(ByteView("x")), soon());
  CHECK_ERROR(error_of([&] { recv_fd(right.get(), soon()); }), ErrorKind::corrupt_data, "descriptor belongs");
  left.reset();
  CHECK_ERROR(error_of([&] { recv_fd(right.get(), soon()); }), ErrorKind::peer_lost, "went away");
  CHECK_ERROR(error_of([&] { send_fd(right.get(), right.get(), soon()); }), ErrorKind::peer_lost, "went away");
}
