#include "lockstep/base/unique_fd.h"

#include <unistd.h>

#include "lockstep/base/private_fd.h"

namespace lockstep::internal {

void UniqueFd::reset(int fd) {
  // close() is not retried on EINTR: on Linux the descriptor is gone either way.
  if (fd_ >= 0 && !PrivateFd::close(fd_)) ::close(fd_);
  fd_ = fd;
}

}  // namespace lockstep::internal
