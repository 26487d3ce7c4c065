// Stream sockets between processes of one host, under abstract names (nothing in the file system, gone with the
// process). name -> listen, connect -> fd -> other fds. Names are per network namespace. Descriptors are non-blocking.
// Both sides check the peer's user id, but a name may be squatted: what is sent next should be a handshake.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep {

inline constexpr std::size_t kMaxUnixNameBytes = 100;

struct PeerCredentials {
  pid_t pid = 0;  // 0 if it lives in another pid namespace
  uid_t uid = 0;
  gid_t gid = 0;
};

// Who was at the other end of a unix socket when it was connected.
PeerCredentials peer_credentials(int fd);

// Error{invalid_argument} if the name is taken.
UniqueFd unix_listen(std::string_view name, int backlog = 64);
// Waits for a peer of this user; peers of other users are closed and reported in the log. Error{timeout}.
UniqueFd unix_accept(int listener, Deadline deadline);
// Tries until somebody listens under the name. Error{timeout}; Error{unauthorized} if that is another user.
UniqueFd unix_connect(std::string_view name, Deadline deadline);

// Hands a copy of `fd` to the peer. The received descriptor is close-on-exec. Errors as send_all() and recv_all().
void send_fd(int socket, int fd, Deadline deadline);
UniqueFd recv_fd(int socket, Deadline deadline);

}  // namespace lockstep
