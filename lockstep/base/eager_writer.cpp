#include "lockstep/base/eager_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <ctime>

namespace lockstep {
namespace {

// A SIGPIPE that this write causes is taken back; one that was pending before stays.
ssize_t write_without_sigpipe(int fd, std::string_view bytes) noexcept {
  sigset_t pipe;
  sigset_t before;
  sigset_t pending;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::sigpending(&pending);
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  const int saved_errno = errno;
  if (written < 0 && saved_errno == EPIPE && ::sigismember(&pending, SIGPIPE) == 0) {
    const timespec now{};
    while (::sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = saved_errno;
  return written;
}

}  // namespace

EagerWriter::EagerWriter(int fd) : fd_(fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  if (S_ISREG(status.st_mode)) kind_ = Kind::file;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  if (!S_ISFIFO(status.st_mode) && ::isatty(fd) == 0) return;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  own_.reset(::open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

ssize_t EagerWriter::write(std::string_view bytes) noexcept {
  if (kind_ == Kind::file) return ::write(fd_, bytes.data(), bytes.size());
  if (kind_ == Kind::socket) return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (own_) return write_without_sigpipe(own_.get(), bytes);
  // Of a stream that cannot be opened anew, poll knows whether it takes this much.
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return write_without_sigpipe(fd_, bytes.substr(0, std::min<std::size_t>(bytes.size(), PIPE_BUF)));
}

}  // namespace lockstep
