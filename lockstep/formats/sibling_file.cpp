#include "lockstep/formats/sibling_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostNameBytes = 255;  // that a file system takes

}  // namespace

void check_sibling_name(std::string_view name, const std::string& origin) {
  const bool has_wrong_character =
      std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '/' || c == '\\'; });
  if (!name.empty() && name.size() <= kMostNameBytes && !has_wrong_character && name != "." && name != "..") return;
  throw Error(
      ErrorKind::corrupt_data,
      fmt::format("{} refers to the file {}, which is not a file name in the same directory", origin, shown(name)));
}

SiblingFiles::SiblingFiles(const std::filesystem::path& directory)
    : directory_(directory.empty() ? "." : directory),
      fd_(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_) return;
  const int saved_errno = errno;
  const std::string path = directory_.string();
  if (saved_errno == ENOENT) throw Error(ErrorKind::invalid_argument, path + ": no such directory");
  if (saved_errno == ENOTDIR) throw Error(ErrorKind::invalid_argument, path + ": not a directory");
  throw system_error("opening the directory " + path, saved_errno);
}

OpenFile SiblingFiles::open(const std::string& name) const {
  check_sibling_name(name, directory_.string());
  OpenFile file{UniqueFd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK))};
  const int saved_errno = errno;
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorKind::corrupt_data, fmt::format("{}: {}", path_of(name), why));
  };
  if (!file.fd) {
    if (saved_errno == ENOENT) throw refuse("the file is missing");
    if (saved_errno == ELOOP) throw refuse("it is a symbolic link, which is not followed");
    throw system_error("opening " + path_of(name), saved_errno);
  }
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) throw system_error("fstat " + path_of(name), errno);
  if (!S_ISREG(status.st_mode)) throw refuse("not a regular file");
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  return file;
}

}  // namespace lockstep::internal
