// Connected stream sockets (TCP or unix), all of them non-blocking descriptors; the functions here wait with poll(2).
// Endpoint -> connect -> fd -> send, receive. A descriptor is used by one thread per direction at a time.
// Errors: timeout at the deadline, peer_lost when the peer closed or reset the stream; both name the peer.
#pragma once

#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"

namespace lockstep::internal {

enum class ConnectRetry {
  never,           // a refused connection is Error{peer_lost} at once
  until_deadline,  // the server may not be up yet: what may heal is tried again, with growing pauses
  unless_refused,  // the server was there: what may heal is tried again, but a host that refuses says that it is gone
};

// Whether connecting again may do after this error of connect(2): a server, a route, an address of this host or a
// firewall's rule may come late. EINVAL and EACCES, too, are what a route gives that drops or prohibits. Pure.
bool may_heal(int connect_error);

// How long sent bytes may stay without an answer from the peer's kernel before the connection counts as lost. It also
// ends a connection whose peer does not read while its receive buffer is full, so it must exceed the longest pause of a
// healthy peer.
inline constexpr Duration kTcpUserTimeout = std::chrono::seconds(15);

// Connects over TCP, trying all addresses of the endpoint side by side, and tunes the socket as tune_tcp() does.
// Error{timeout} at the deadline says why the last attempts failed.
UniqueFd connect_tcp(const Endpoint& endpoint, ConnectRetry retry, Deadline deadline);

// Whether both ends have addresses of this host. Then one kernel holds both: it ends the connection with the process,
// and silence says no more than that it is busy.
bool is_within_host(int fd);
// TCP_NODELAY, TCP_USER_TIMEOUT, and keepalive probes that find a vanished host on an idle connection. With zero, and
// within a host, no silence ends the connection.
void tune_tcp(int fd, Duration user_timeout = kTcpUserTimeout);

SocketAddress local_address(int fd);
// "127.0.0.1:4711", "process 811 of user 1000 (unix socket)", "a closed connection". For messages.
std::string describe_peer(int fd);

// Waits until poll(2) reports one of `events` or an error on fd. Error{timeout} says what was waited for.
void wait_ready(int fd, short events, Deadline deadline, std::string_view what);

void send_all(int fd, ByteSpan data, Deadline deadline);
void recv_all(int fd, MutableByteSpan data, Deadline deadline);

// One attempt that does not block: the number of bytes moved, 0 for "not now".
std::size_t send_some(int fd, ByteSpan data);
std::size_t recv_some(int fd, MutableByteSpan data);

inline ByteSpan as_span(ByteView bytes) { return std::as_bytes(std::span(bytes)); }
inline MutableByteSpan as_span(Bytes& bytes) { return std::as_writable_bytes(std::span(bytes)); }

}  // namespace lockstep::internal
