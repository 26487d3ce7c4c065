#include "lockstep/formats/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr mode_t kMode = 0600;
constexpr int kAttempts = 100;
constexpr std::size_t kSendBytes = 16 << 20;

constexpr std::string_view kWriting = ".writing-";

std::string temporary_prefix(const std::filesystem::path& target) {
  return fmt::format(".{}{}", target.filename().string(), kWriting);
}

bool is_linked(const UniqueFd& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

// What a program talks to is no file that could be replaced: with /dev/null or a FIFO as the target, all other programs
// that use it would get a file instead. A link is replaced itself, but one to such a thing stands for it.
void refuse_other_than_files(const std::filesystem::path& target) {
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) return;  // nothing is there, or a link that leads nowhere
  const char* kind = S_ISFIFO(status.st_mode)   ? "a FIFO"
                     : S_ISSOCK(status.st_mode) ? "a socket"
                     : S_ISCHR(status.st_mode)  ? "a device"
                     : S_ISBLK(status.st_mode)  ? "a device"
                                                : nullptr;
  if (kind == nullptr) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("saving {}: this is {}, which is not replaced; name a file", target.string(), kind));
}

void sync(const UniqueFd& fd, const std::string& what) {
  while (::fsync(fd.get()) != 0) {
    if (errno != EINTR) throw system_error(what, errno);
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target)
    : target_(target), directory_(target.has_parent_path() ? target.parent_path() : ".") {
  if (!target.has_filename()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("saving '{}': this is not the name of a file", target.string()));
  }
  refuse_other_than_files(target);
  directory_fd_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_fd_) {
    const int saved_errno = errno;
    if (saved_errno == ENOENT || saved_errno == ENOTDIR) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("saving {}: the directory {} does not exist", target_.string(), directory_.string()));
    }
    throw system_error(fmt::format("saving {}: opening the directory", target_.string()), saved_errno);
  }
  const std::string prefix = temporary_prefix(target_);
  remove_abandoned(directory_, target_.filename().string());
  std::random_device random;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::filesystem::path name = directory_ / fmt::format("{}{:08x}{:08x}", prefix, random(), random());
    UniqueFd file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
    if (!file) {
      if (errno == EEXIST || errno == EINTR) continue;
      throw system_error(fmt::format("saving {}: creating {}", target_.string(), name.string()), errno);
    }
    // Another writer may have taken the file for an abandoned one before it was locked. A file system without locks
    // is fine: there, nobody can lock it to remove it.
    const bool is_taken = ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_taken && is_linked(file)) {
      file_ = std::move(file);
      temporary_ = name;
      return;
    }
    ::unlink(name.c_str());
  }
  throw Error(ErrorKind::internal,
              fmt::format("saving {}: no temporary file could be made in {}", target_.string(), directory_.string()));
}

// A living writer holds a lock on its temporary file, so one that can be locked belongs to nobody.
void AtomicFile::remove_abandoned(const std::filesystem::path& directory, std::string_view names) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(fmt::format(".{}", names)) || name.find(kWriting) == std::string::npos) continue;
    const UniqueFd file(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

void AtomicFile::sync_directory(const UniqueFd& directory, const std::string& doing) { sync(directory, doing); }

void AtomicFile::write(ByteSpan bytes) {
  write_all(file_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
            fmt::format("saving {}: writing {} bytes (a file of that name, if there was one, is unchanged)",
                        target_.string(), bytes.size()));
  unsent_ += bytes.size();
  if (unsent_ >= kSendBytes) send_to_disk();
}

// So that the disk is busy before publish(), which waits for it. What a file system cannot do is no error here.
void AtomicFile::send_to_disk() {
  unsent_ = 0;
  if (::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE) == 0) return;
  const int saved_errno = errno;
  if (saved_errno != EIO && saved_errno != ENOSPC) return;
  throw system_error(fmt::format("saving {}: writing to the disk", target_.string()), saved_errno);
}

void AtomicFile::rewrite_begin(ByteSpan bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw system_error(fmt::format("saving {}: writing its first {} bytes again", target_.string(), bytes.size()),
                         errno);
    }
    done += static_cast<std::size_t>(count);
  }
}

void AtomicFile::publish() {
  sync(file_, fmt::format("saving {}: fsync", target_.string()));
  refuse_other_than_files(target_);  // that has come meanwhile
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw system_error(fmt::format("saving {}: renaming {}", target_.string(), temporary_.string()), errno);
  }
  file_.reset();
  sync(directory_fd_, fmt::format("saving {}: fsync of the directory", target_.string()));
}

}  // namespace lockstep::internal
