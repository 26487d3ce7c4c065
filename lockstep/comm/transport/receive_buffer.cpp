#include "lockstep/comm/transport/receive_buffer.h"

#include <sys/socket.h>

#include <algorithm>
#include <climits>

namespace lockstep::internal {
namespace {

void set_low_water(int fd, int bytes) { ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); }

}  // namespace

// Not SO_RCVBUF: its limit, net.core.rmem_max, is smaller, and the kernel would never enlarge the buffer again. The
// buffer made for a low-water mark remains when the mark, below which no data are reported, is removed.
void enlarge_receive_buffer(int fd, std::size_t bytes) {
  set_low_water(fd, static_cast<int>(std::min<std::size_t>(bytes, INT_MAX)));
  set_low_water(fd, 1);
}

}  // namespace lockstep::internal
