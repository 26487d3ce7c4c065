#include "lockstep/base/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{64} << 20;  // a call on more than 2 GiB would move less

// What open() has returned, if it is a regular file.
OpenFile checked_open(int fd, const std::string& path) {
  OpenFile file{UniqueFd(fd)};
  if (!file.fd) {
    const int saved_errno = errno;
    if (saved_errno == ELOOP)
      throw Error(ErrorKind::invalid_argument,
                  path + ": it is a symbolic link, which is not followed here; put the file itself in its place");
    if (saved_errno != ENOENT && saved_errno != ENOTDIR) throw system_error("opening " + path, saved_errno);
    throw Error(ErrorKind::invalid_argument, path + ": no such file");
  }
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) throw system_error("fstat " + path, errno);
  if (!S_ISREG(status.st_mode)) throw Error(ErrorKind::invalid_argument, path + ": not a regular file");
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

}  // namespace

OpenFile open_regular_file(const std::string& path) {
  return checked_open(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
}

OpenFile open_regular_file_in(int directory, const std::string& name, const std::string& path) {
  return checked_open(::openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW), path);
}

void write_all(int fd, ByteView bytes, const std::string& doing) {
  const SignalBlock too_large({SIGXFSZ});
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int saved_errno = errno;
      if (saved_errno == EFBIG) too_large.discard(SIGXFSZ);
      throw system_error(doing, saved_errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

int resize_file(int fd, std::uint64_t bytes) noexcept {
  const SignalBlock too_large({SIGXFSZ});
  const int error = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == EFBIG) too_large.discard(SIGXFSZ);
  return error;
}

Error memory_file_error(const std::string& doing, int saved_errno) {
  const Error error = system_error(doing, saved_errno);
  if (saved_errno != EPERM && saved_errno != EACCES && saved_errno != ENOSYS) return error;
  return Error(error.kind(), error.what() + std::string("; the system call memfd_create is forbidden here: allow it in "
                                                        "the sandbox or container (its seccomp profile)"));
}

ssize_t read_at(int fd, std::uint64_t offset, MutableByteSpan out) noexcept {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t wanted = std::min(out.size() - done, kMostAtOnce);
    const ssize_t count = ::pread(fd, out.data() + done, wanted, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(done);
}

Bytes read_at(int fd, std::uint64_t offset, std::size_t count, const std::string& doing) {
  Bytes bytes(count, '\0');
  const ssize_t got = read_at(fd, offset, std::as_writable_bytes(std::span(bytes)));
  if (got < 0) throw system_error(doing, errno);
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

}  // namespace lockstep::internal
