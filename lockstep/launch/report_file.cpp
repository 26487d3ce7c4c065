#include "lockstep/launch/report_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;
constexpr Duration kForReader = std::chrono::seconds(10);

std::string doing(const std::string& path) { return fmt::format("writing the report '{}'", path); }

[[noreturn]] void fail(const std::string& path, int error) { throw system_error(doing(path), error); }

bool is_under(const fs::path& path, std::string_view folder) {
  const std::string& text = path.native();
  return text.starts_with(folder) && text.size() > folder.size() && text[folder.size()] == '/';
}

// Where a path leads.
struct Target {
  std::string path;
  int descriptor = -1;  // of this process, if it is one
};

// The number of a descriptor whose name is in /proc/<this process>/fd.
int descriptor_of(const fs::path& folder, const std::string& name) {
  int descriptor = -1;
  if (folder != fmt::format("/proc/{}/fd", ::getpid())) return -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), descriptor);
  return error == std::errc() && end == name.data() + name.size() ? descriptor : -1;
}

// Link by link, so that /dev/stdout is found to be descriptor 1, and not the file behind that.
Target find_target(const std::string& path) {
  fs::path at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (error) fail(path, error.value());
    at = folder / at.filename();
    if (is_under(folder, "/proc")) return {at, descriptor_of(folder, at.filename())};
    const fs::path leads_to = fs::read_symlink(at, error);
    if (error) return {at};
    at = leads_to.is_absolute() ? leads_to : folder / leads_to;
  }
  fail(path, ELOOP);
}

bool is_written_in_place(const Target& target) {
  struct stat status {};
  if (target.descriptor >= 0 || is_under(target.path, "/proc")) return true;
  if (is_under(target.path, "/dev") && !is_under(target.path, "/dev/shm")) return true;
  return ::stat(target.path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

// In pieces that a pipe takes at once when it takes anything.
void write_to_reader(int fd, std::string_view text, const std::string& path) {
  const SignalBlock of_writes({SIGPIPE, SIGXFSZ});
  const Deadline deadline = Deadline::after(kForReader);
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) < 0 && errno != EINTR) fail(path, errno);
    if (deadline.expired()) fail(path, ETIMEDOUT);
    if (ready.revents == 0) continue;
    const ssize_t count = ::write(fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
      const int error = errno;
      if (error == EPIPE) of_writes.discard(SIGPIPE);
      if (error == EFBIG) of_writes.discard(SIGXFSZ);
      fail(path, error);
    }
    text.remove_prefix(count < 0 ? 0 : static_cast<std::size_t>(count));
  }
}

void write_in_place(const Target& target, std::string_view text, const std::string& path) {
  // A descriptor keeps its place in its file; opening it anew would begin at the front.
  UniqueFd fd(target.descriptor >= 0 ? ::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 3)
                                     : ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_APPEND));
  if (!fd) fail(path, errno);
  write_to_reader(fd.get(), text, path);
}

void replace(const std::string& target, std::string_view text, const std::string& path) {
  const std::string fresh = target + ".new";
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666));
  if (!fd) fail(path, errno);
  try {
    write_all(fd.get(), text, doing(path));
    if (std::rename(fresh.c_str(), target.c_str()) != 0) fail(path, errno);
  } catch (const Error&) {
    ::unlink(fresh.c_str());
    throw;
  }
}

}  // namespace

void write_report_file(const std::string& path, std::string_view text) {
  const Target target = find_target(path);
  if (is_written_in_place(target)) {
    write_in_place(target, text, path);
  } else {
    replace(target.path, text, path);
  }
}

}  // namespace lockstep::internal
