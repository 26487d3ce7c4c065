#include "lockstep/base/nonblocking_writer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::internal {
namespace {

// A reader that has gone, and a limit on file sizes, are error codes of write.
ssize_t write_without_signals(int fd, std::string_view bytes) noexcept {
  const SignalBlock block({SIGPIPE, SIGXFSZ});
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  const int saved_errno = errno;
  if (written < 0 && saved_errno == EPIPE) block.discard(SIGPIPE);
  if (written < 0 && saved_errno == EFBIG) block.discard(SIGXFSZ);
  errno = saved_errno;
  return written;
}

}  // namespace

NonblockingWriter::NonblockingWriter(int fd) : fd_(fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  if (S_ISREG(status.st_mode)) kind_ = Kind::file;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  if (!S_ISFIFO(status.st_mode) && ::isatty(fd) == 0) return;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  own_ = open_as_it_is(path);
}

ssize_t NonblockingWriter::write(std::string_view bytes) noexcept {
  if (kind_ == Kind::file) return write_without_signals(fd_, bytes);
  if (kind_ == Kind::socket) return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (own_) return write_without_signals(own_.get(), bytes);
  // For a stream that cannot be opened again, poll() tells whether it takes this much.
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return write_without_signals(fd_, bytes.substr(0, std::min<std::size_t>(bytes.size(), PIPE_BUF)));
}

}  // namespace lockstep::internal
