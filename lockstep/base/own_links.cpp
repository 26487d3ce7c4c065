#include "lockstep/base/own_links.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_at(const std::string& doing, int error) {
  throw Error(ErrorKind::invalid_argument, doing + ": " + std::generic_category().message(error));
}

UniqueFd open_itself(const fs::path& at) { return UniqueFd(::open(at.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)); }

struct stat status_of(const UniqueFd& fd, const std::string& doing) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_at(doing, errno);
  return status;
}

fs::path read_link(const UniqueFd& link, const std::string& doing) {
  std::string text(PATH_MAX, '\0');
  const ssize_t bytes = ::readlinkat(link.get(), "", text.data(), text.size());
  if (bytes < 0) fail_at(doing, errno);
  return text.substr(0, static_cast<std::size_t>(bytes));
}

}  // namespace

bool is_under(const fs::path& path, std::string_view folder) {
  const std::string& text = path.native();
  return text.starts_with(folder) && text.size() > folder.size() && text[folder.size()] == '/';
}

bool is_of_system(const fs::path& path) {
  return is_under(path, "/proc") || (is_under(path, "/dev") && !is_under(path, "/dev/shm"));
}

void require_own(const struct stat& status, const fs::path& at, const char* what, const std::string& doing) {
  if (status.st_uid == ::geteuid() || status.st_uid == 0 || is_of_system(at)) return;
  throw Error(ErrorKind::invalid_argument, doing + ": " + at.string() + " is " + what + " of user " +
                                               std::to_string(status.st_uid) +
                                               ", so it is not used; remove it or choose another path");
}

std::optional<fs::path> read_own_link(const fs::path& at, const std::string& doing) {
  const UniqueFd link = open_itself(at);
  if (!link) return std::nullopt;
  const struct stat status = status_of(link, doing);
  if (!S_ISLNK(status.st_mode)) return std::nullopt;
  require_own(status, at, "a link", doing);
  return read_link(link, doing);
}

UniqueFd open_folder(const fs::path& folder, const std::string& doing) {
  fs::path at = folder;
  for (int links = 0; links < kMostLinks; ++links) {
    while (!at.has_filename() && at.has_relative_path()) at = at.parent_path();  // "logs/" would be followed
    UniqueFd fd = open_itself(at);
    if (!fd) fail_at(doing, errno);
    const struct stat status = status_of(fd, doing);
    if (S_ISDIR(status.st_mode)) return fd;
    if (!S_ISLNK(status.st_mode)) fail_at(doing, ENOTDIR);
    require_own(status, at, "a link", doing);
    at = at.parent_path() / read_link(fd, doing);  // what is absolute replaces it
  }
  fail_at(doing, ELOOP);
}

}  // namespace lockstep::internal
