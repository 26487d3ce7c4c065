#include "lockstep/launch/program_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// 0, or the errno that executing the file would give.
int why_not_executable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

ExecFailed cannot_execute(const std::string& path, int saved_errno) {
  std::string hint;
  if (saved_errno == EACCES && path.ends_with(".py")) hint = fmt::format("; to run a Python script: python3 {}", path);
  if (saved_errno == EACCES && hint.empty()) hint = fmt::format("; chmod +x {}", path);
  return ExecFailed(fmt::format("cannot execute '{}': {}{}", path, std::strerror(saved_errno), hint), saved_errno);
}

}  // namespace

int ExecFailed::shell_code() const { return saved_errno_ == ENOENT ? 127 : 126; }

std::string find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const int failure = why_not_executable(name);
    if (failure != 0) throw cannot_execute(name, failure);
    return name;
  }
  std::string unusable;
  int unusable_errno = 0;
  std::istringstream directories(search_path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string path = (directory.empty() ? "." : directory) + "/" + name;
    const int failure = why_not_executable(path);
    if (failure == 0) return path;
    if (failure == EACCES && unusable.empty()) {
      unusable = path;
      unusable_errno = failure;
    }
  }
  if (!unusable.empty()) throw cannot_execute(unusable, unusable_errno);
  const bool here = !name.empty() && ::access(name.c_str(), F_OK) == 0;
  throw ExecFailed(fmt::format("program '{}' was not found in PATH{}", name,
                               here ? fmt::format("; to run the file in this directory: ./{}", name) : ""),
                   ENOENT);
}

}  // namespace lockstep::internal
