#include "lockstep/comm/store/file_log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/private_fd.h"
#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/store/log_record.h"

namespace lockstep::internal {
namespace {

constexpr off_t kMaxLogBytes = off_t{1} << 30;

constexpr Duration kLeaveTimeout = std::chrono::milliseconds(200);

// Both locks are locks on bytes far after the end. They belong to the open file, not to the process, so they also hold
// between threads and are not lost when some other descriptor of the file is closed.
constexpr off_t kTurnByte = off_t{1} << 40;
constexpr off_t kPresenceByte = kTurnByte + 1;

bool set_lock(int fd, short type, off_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  for (;;) {
    if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return true;
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno != EINTR) throw system_error("locking a store file failed", errno);
  }
}

Bytes read_from(int fd, std::uint64_t offset, std::size_t count, const std::string& path) {
  return read_at(fd, offset, count, "reading the store file " + path + " failed");
}

off_t size_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw system_error("reading the status of the store file " + path + " failed", errno);
  return status.st_size;
}

LogFile log_file(int fd, const std::string& path) {
  return {.read = [fd, &path](std::uint64_t offset, std::size_t count) { return read_from(fd, offset, count, path); },
          .size = static_cast<std::uint64_t>(size_of(fd, path)),
          .path = path};
}

std::string describe_creator(int fd, const std::string& path) {
  try {
    const auto header = read_log_header(log_file(fd, path));
    if (!header || header->end == 0) return "";
    return fmt::format(" (begun by pid {}{}, run '{}')", header->pid,
                       header->boot_id == boot_id() ? "" : " before a reboot or on another host", header->run_id);
  } catch (const Error&) {  // damaged; it is about to be replaced
    return "";
  }
}

}  // namespace

FileLog::FileLog(std::string path, std::string_view run_id, Deadline deadline) : path_(std::move(path)) {
  // Between open and lock the last user may have removed the file; then there is another one, or none.
  while (!open_and_lock(deadline)) {
  }
  if (is_alone()) {
    start(run_id);
  } else {
    check_header(run_id);
  }
  share_presence();
  unlock();
}

FileLog::~FileLog() {
  if (!fork_guard_.is_here()) return;  // a forked child's parent still uses the file
  try {
    // Of two that leave at once, the second must see that the first is gone; but a stopped process is not waited for.
    if (lock(Deadline::after(kLeaveTimeout)) && is_alone()) ::unlink(path_.c_str());
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

bool FileLog::open_and_lock(Deadline deadline) {
  fd_ = PrivateFd::open([this] { return open_or_create(path_); });
  if (!fd_) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("cannot open the store file {}: {}", path_, std::strerror(errno)));
  }
  check_file();
  if (!lock(deadline)) {
    throw Error(
        ErrorKind::timeout,
        fmt::format("the store file {} remained locked until the deadline; is a process of the job stopped?", path_));
  }
  struct stat mine {};
  struct stat named {};
  if (::fstat(fd_.get(), &mine) != 0)
    throw system_error("reading the status of the store file " + path_ + " failed", errno);
  return ::stat(path_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

void FileLog::check_file() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0)
    throw system_error("reading the status of the store file " + path_ + " failed", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::invalid_argument, fmt::format("{} is not a regular file, so it cannot hold a store", path_));
  }
  if (status.st_uid != ::geteuid()) {
    throw Error(ErrorKind::unauthorized,
                fmt::format("the store file {} belongs to user {}, not to this user {}; choose another file", path_,
                            status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  if (status.st_size > 0) {
    throw Error(ErrorKind::unauthorized,
                fmt::format("the store file {} has mode {:04o}, so others may read or change it; remove it", path_,
                            status.st_mode & 07777));
  }
  if (::fchmod(fd_.get(), 0600) != 0) throw system_error("making the store file " + path_ + " private failed", errno);
}

bool FileLog::try_lock() { return set_lock(fd_.get(), F_WRLCK, kTurnByte); }

bool FileLog::lock(Deadline deadline) {
  while (!try_lock()) {
    if (deadline.expired()) return false;
    ::poll(nullptr, 0, deadline.poll_timeout_ms(2));
  }
  return true;
}

void FileLog::unlock() { set_lock(fd_.get(), F_UNLCK, kTurnByte); }

bool FileLog::is_alone() { return set_lock(fd_.get(), F_WRLCK, kPresenceByte); }

void FileLog::share_presence() {
  if (!set_lock(fd_.get(), F_RDLCK, kPresenceByte)) {
    throw Error(ErrorKind::internal, fmt::format("cannot open the store file {} together with others: a process holds "
                                                 "it exclusively; end that process or choose another file",
                                                 path_));
  }
}

bool FileLog::has_news() const { return size_of(fd_.get(), path_) != offset_; }

// REQUIRES: nobody else uses the file.
void FileLog::start(std::string_view run_id) {
  const Bytes begin = read_from(fd_.get(), 0, kLogMagic.size(), path_);
  if (begin != kLogMagic.substr(0, begin.size())) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} exists and is not a store file of Lockstep; it was not changed", path_));
  }
  if (!begin.empty()) {
    log_warning(
        fmt::format("replaced the store file {} of a run that has ended{}", path_, describe_creator(fd_.get(), path_)));
  }
  if (::ftruncate(fd_.get(), 0) != 0) throw system_error("emptying the store file " + path_ + " failed", errno);
  offset_ = 0;
  append(
      encode(LogHeader{.pid = static_cast<std::uint32_t>(::getpid()), .boot_id = boot_id(), .run_id = Bytes(run_id)}));
  first_record_ = offset_;
}

void FileLog::check_header(std::string_view run_id) {
  const auto header = read_log_header(log_file(fd_.get(), path_));
  if (!header) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{} is used by another program and is not a store file of Lockstep; choose another file", path_));
  }
  if (header->end == 0) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format(
            "the store file {} has format version {}, but this process writes version {}; run the same build of "
            "Lockstep everywhere",
            path_, header->version, kLogVersion));
  }
  if (header->run_id != run_id) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("the store file {} is in use by another run: '{}', begun by pid {}; this run is '{}'. End that "
                    "run or choose another file",
                    path_, header->run_id, header->pid, run_id));
  }
  offset_ = first_record_ = static_cast<off_t>(header->end);
}

void FileLog::read(KeyMap& map) {
  const off_t size = size_of(fd_.get(), path_);
  if (size < offset_) {
    throw Error(
        ErrorKind::corrupt_data,
        fmt::format("the store file {} was truncated while it was in use; end the job, remove the file and start again",
                    path_));
  }
  const LogFile file = log_file(fd_.get(), path_);
  while (offset_ < size) {
    const auto payload = read_log_record(file, static_cast<std::uint64_t>(offset_));
    if (!payload) {
      log_warning(fmt::format("removed {} trailing bytes from the store file {}: a process died while writing them",
                              size - offset_, path_));
      if (::ftruncate(fd_.get(), offset_) != 0)
        throw system_error("truncating the store file " + path_ + " failed", errno);
      return;
    }
    try {
      replay(*payload, map);
    } catch (const Error& error) {
      throw Error(
          error.kind(),
          fmt::format("the store file {} is damaged at offset {}: {}; end the job, remove the file and start again",
                      path_, offset_, error.what()));
    }
    offset_ += static_cast<off_t>(kFrameHeaderBytes + payload->size());
  }
}

void FileLog::append_set(std::string_view key, ByteView value) { append(make_log_record(encode_set(key, value))); }

void FileLog::append_remove(std::string_view key) { append(make_log_record(encode_remove(key))); }

// In one write.
void FileLog::append(ByteView record) {
  if (offset_ + static_cast<off_t>(record.size()) > kMaxLogBytes) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("the store file {} has reached its limit of {} bytes; use a tcp:// store", path_, kMaxLogBytes));
  }
  ssize_t written = 0;
  do {
    written = ::pwrite(fd_.get(), record.data(), record.size(), offset_);
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(record.size())) {
    const int error = written < 0 ? errno : ENOSPC;
    [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), offset_);
    throw system_error("writing the store file " + path_ + " failed", error);
  }
  offset_ += written;
}

}  // namespace lockstep::internal
