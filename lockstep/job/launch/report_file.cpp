#include "lockstep/job/launch/report_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/own_links.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

constexpr Duration kForReader = std::chrono::seconds(10);

std::string doing(const std::string& path) { return fmt::format("writing the report '{}'", path); }

[[noreturn]] void fail(const std::string& path, int error) { throw system_error(doing(path), error); }

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

[[noreturn]] void fail_without(const fs::path& directory, const std::string& path) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}: the directory {} does not exist", doing(path), directory.string()));
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
    const fs::path named = directory_of(at), folder = fs::canonical(named, error);
    if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) fail_without(named, path);
    if (error) fail(path, error.value());
    at = folder / at.filename();
    if (is_under(folder, "/proc")) return {at, descriptor_of(folder, at.filename())};
    const std::optional<fs::path> leads_to = read_own_link(at, doing(path));
    if (!leads_to) return {at};
    at = leads_to->is_absolute() ? *leads_to : folder / *leads_to;
  }
  fail(path, ELOOP);
}

bool is_written_in_place(const Target& target) {
  struct stat status {};
  if (target.descriptor >= 0 || is_of_system(target.path)) return true;
  return ::lstat(target.path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
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
  const UniqueFd fd =
      target.descriptor >= 0 ? UniqueFd(::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 3)) : open_as_it_is(target.path);
  if (!fd && errno == ENXIO) throw Error(ErrorKind::invalid_argument, doing(path) + ": no process reads it");
  if (!fd) fail(path, errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail(path, errno);
  if (target.descriptor < 0) require_own(status, target.path, "a FIFO or a device", doing(path));
  write_to_reader(fd.get(), text, path);
}

void replace(const std::string& target, std::string_view text) {
  AtomicFile file(target, {.mode = kSharedMode});
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

}  // namespace

void check_report_directory(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(directory_of(path), error)) fail_without(directory_of(path), path);
}

void write_report_file(const std::string& path, std::string_view text) {
  const Target target = find_target(path);
  if (is_written_in_place(target)) {
    write_in_place(target, text, path);
  } else {
    replace(target.path, text);
  }
}

}  // namespace lockstep::internal
