#include "lockstep/base/open_for_writing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

constexpr int kNew = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
constexpr int kThere = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void refuse(const std::string& doing, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, doing + ": " + why);
}

[[noreturn]] void fail(const std::string& doing, int error) { refuse(doing, std::generic_category().message(error)); }

// Null for what may be replaced, or appended to.
const char* special_kind(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : nullptr;
}

}  // namespace

FilePlace place_of(const std::filesystem::path& path, const std::string& doing) {
  if (!path.has_filename()) refuse(doing, "'" + path.string() + "' is not the name of a file");
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  FilePlace place{.path = path, .name = path.filename().string()};
  place.directory.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (place.directory) return place;
  const int saved_errno = errno;
  if (saved_errno == ENOENT || saved_errno == ENOTDIR) {
    refuse(doing, "the directory " + folder.string() + " does not exist");
  }
  throw system_error(doing + ": opening the directory", saved_errno);
}

void refuse_other_than_files(const FilePlace& place, const std::string& doing) {
  struct stat status {};
  // Otherwise nothing is there, or a link that leads nowhere.
  if (::fstatat(place.directory.get(), place.name.c_str(), &status, 0) != 0) return;
  if (const char* kind = special_kind(status.st_mode)) {
    refuse(doing, std::string("this is ") + kind + ", which is not replaced; name a file");
  }
}

UniqueFd create_file(const UniqueFd& directory, const std::string& name, mode_t mode) noexcept {
  return UniqueFd(::openat(directory.get(), name.c_str(), kNew, mode));
}

UniqueFd create_in_place_of(const std::filesystem::path& path, mode_t mode, const std::string& doing) {
  return create_in_place_of(place_of(path, doing), mode, doing);
}

UniqueFd create_in_place_of(const FilePlace& place, mode_t mode, const std::string& doing) {
  refuse_other_than_files(place, doing);
  if (::unlinkat(place.directory.get(), place.name.c_str(), 0) != 0 && errno != ENOENT) fail(doing, errno);
  UniqueFd fd(::openat(place.directory.get(), place.name.c_str(), kNew | O_APPEND, mode));
  if (!fd) fail(doing, errno);
  return fd;
}

UniqueFd open_to_append(const std::filesystem::path& path, mode_t mode, const std::string& doing) {
  UniqueFd fd(::open(path.c_str(), kThere | O_APPEND, mode));
  const int saved_errno = errno;
  if (!fd && saved_errno == ELOOP) refuse(doing, "this is a link, which is not followed; name a file");
  if (!fd) fail(doing, saved_errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail(doing, errno);
  if (!S_ISREG(status.st_mode)) refuse(doing, "this is not a regular file; name another");
  return fd;
}

int open_or_create(const std::string& path) noexcept { return ::open(path.c_str(), kThere, kPrivateMode); }

UniqueFd open_as_it_is(const std::string& path) noexcept {
  // Below /proc names are links that lead to descriptors, and only there.
  const int of_links = path.starts_with("/proc/") ? 0 : O_NOFOLLOW;
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | of_links));
}

}  // namespace lockstep::internal
