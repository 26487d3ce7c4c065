// The kernel's memory for what was not read: as much as the window of a group promises.
#include "lockstep/comm/transport/receive_buffer.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <utility>

#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/listener.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/tcp_mesh.h"
#include "lockstep/comm/transport/tcp_peer.h"

namespace receive_buffer_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Deadline soon() { return Deadline::after(20s); }

int option(int fd, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  REQUIRE(::getsockopt(fd, SOL_SOCKET, name, &value, &bytes) == 0);
  return value;
}

std::size_t buffer_of(int fd) { return static_cast<std::size_t>(option(fd, SO_RCVBUF)); }

std::pair<UniqueFd, UniqueFd> connect_pair() {
  Listener listener = Listener::bind({"127.0.0.1", 0}, soon());
  UniqueFd near = connect_tcp(listener.address().endpoint(), ConnectRetry::never, soon());
  wait_ready(listener.fd(), POLLIN, soon(), "the connection");
  return {std::move(near), listener.accept()};
}

}  // namespace

TEST_CASE("a receive buffer becomes as large as asked, and never smaller; every byte is still reported") {
  auto [near, far] = connect_pair();
  enlarge_receive_buffer(near.get(), kMiB);
  const std::size_t after = buffer_of(near.get());
  CHECK(after >= kMiB);
  enlarge_receive_buffer(near.get(), kMiB / 4);
  CHECK(buffer_of(near.get()) == after);
  CHECK(option(near.get(), SO_RCVLOWAT) == 1);
  const std::byte one{7};
  send_all(far.get(), {&one, 1}, soon());
  wait_ready(near.get(), POLLIN, soon(), "a byte");
}

TEST_CASE("every connection for data can hold the window of a group, also one that has grown") {
  auto [control, peer_control] = connect_pair();
  auto [data, peer_data] = connect_pair();
  const int data_fd = data.get(), control_fd = control.get();
  OpenGroups open_groups;
  TcpPeer peer(1, "rank 1", "rank 0", {}, open_groups);
  peer.adopt(0, std::move(control));
  peer.adopt(1, std::move(data));
  CHECK(buffer_of(data_fd) >= kFirstWindow);

  const auto group = std::make_shared<GroupLinks>(GroupId{5}, 0, "rank 0", -1);
  group->peers = {0, 1};
  peer.attach(*peer.reserve(group->id), group, "rank 1");
  send_frame(peer_control.get(), encode(ControlKind::wish, group->id, 2 * kMiB), kMaxControlBytes, soon());
  wait_ready(control_fd, POLLIN, soon(), "the wish");
  peer.read_control();
  CHECK(buffer_of(data_fd) >= 2 * kMiB);
}

}  // namespace receive_buffer_test
