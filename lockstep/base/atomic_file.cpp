#include "lockstep/base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr int kAttempts = 100;
constexpr std::size_t kSendBytes = 16 << 20;

constexpr std::string_view kWriting = ".writing-";

std::string saving(const std::filesystem::path& target) { return fmt::format("saving {}", target.string()); }

bool is_linked(const UniqueFd& file) {
  struct stat status {};
  return ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
}

void sync(const UniqueFd& fd, const std::string& what) {
  while (::fsync(fd.get()) != 0) {
    if (errno != EINTR) throw system_error(what, errno);
  }
}

// A living writer holds a lock on its temporary file, so one that can be locked belongs to nobody.
void remove_abandoned_in(const UniqueFd& directory, std::string_view names) {
  const std::string begin = fmt::format(".{}", names);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      ::fdopendir(::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), &::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(begin) || name.find(kWriting) == std::string_view::npos) continue;
    const UniqueFd file(::openat(directory.get(), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(directory.get(), entry->d_name, 0);
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target, AtomicFileOptions options)
    : options_(options), place_(place_of(target, saving(target))) {
  refuse_other_than_files(place_, saving(target));
  remove_abandoned_in(place_.directory, place_.name);
  create();
}

void AtomicFile::create() {
  std::random_device random;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name = fmt::format(".{}{}{:08x}{:08x}", place_.name, kWriting, random(), random());
    UniqueFd file = create_file(place_.directory, name, options_.mode);
    if (!file) {
      if (errno == EEXIST || errno == EINTR) continue;
      throw system_error(doing(fmt::format("creating {}", name)), errno);
    }
    if (!options_.obeys_umask && ::fchmod(file.get(), options_.mode) != 0) {
      const int saved_errno = errno;
      ::unlinkat(place_.directory.get(), name.c_str(), 0);
      throw system_error(doing(fmt::format("setting the mode of {}", name)), saved_errno);
    }
    // Another writer may have taken the file for an abandoned one before it was locked. A file system without locks
    // is fine: there, nobody can lock it to remove it.
    const bool is_taken = ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_taken && is_linked(file)) {
      file_ = std::move(file);
      temporary_ = name;
      return;
    }
    ::unlinkat(place_.directory.get(), name.c_str(), 0);
  }
  throw Error(ErrorKind::internal, doing("cannot create a temporary file in its directory"));
}

void AtomicFile::remove_abandoned(const std::filesystem::path& directory, std::string_view names) {
  const UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened) remove_abandoned_in(opened, names);
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlinkat(place_.directory.get(), temporary_.c_str(), 0);
}

std::string AtomicFile::doing(std::string_view what) const { return fmt::format("{}: {}", saving(place_.path), what); }

void AtomicFile::sync_directory(const UniqueFd& directory, const std::string& doing) { sync(directory, doing); }

void AtomicFile::write(ByteSpan bytes) {
  write_all(file_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
            doing(fmt::format("writing {} bytes (a file of that name, if there was one, is unchanged)", bytes.size())));
  unsent_ += bytes.size();
  if (unsent_ >= kSendBytes && options_.survives_power_cut) send_to_disk();
}

// So that the disk is busy before publish(), which waits for it. What a file system cannot do is no error here.
void AtomicFile::send_to_disk() {
  unsent_ = 0;
  if (::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE) == 0) return;
  const int saved_errno = errno;
  if (saved_errno != EIO && saved_errno != ENOSPC) return;
  throw system_error(doing("writing to the disk"), saved_errno);
}

void AtomicFile::rewrite_begin(ByteSpan bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw system_error(doing(fmt::format("rewriting its first {} bytes", bytes.size())), errno);
    }
    done += static_cast<std::size_t>(count);
  }
}

void AtomicFile::finish() {
  if (options_.survives_power_cut) sync(file_, doing("fsync"));
  refuse_other_than_files(place_, saving(place_.path));  // that has come meanwhile
}

void AtomicFile::sync_names() const {
  if (options_.survives_power_cut) sync(place_.directory, doing("fsync of the directory"));
}

void AtomicFile::publish() {
  finish();
  const int directory = place_.directory.get();
  if (::renameat(directory, temporary_.c_str(), directory, place_.name.c_str()) != 0) {
    throw system_error(doing(fmt::format("renaming {}", temporary_)), errno);
  }
  file_.reset();
  sync_names();
}

// A link appears whole and only once, however many processes try.
void AtomicFile::publish_if_missing() {
  finish();
  const int directory = place_.directory.get();
  if (::linkat(directory, temporary_.c_str(), directory, place_.name.c_str(), 0) != 0 && errno != EEXIST) {
    throw system_error(doing("linking the temporary file to its name"), errno);
  }
  ::unlinkat(directory, temporary_.c_str(), 0);
  file_.reset();
  sync_names();
}

}  // namespace lockstep::internal
