#include "lockstep/launch/spawn_report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The file's first byte; the exception's text follows.
constexpr char kReached = 'r';
constexpr char kRaised = 'x';
constexpr char kLostAPeer = 'p';
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;

}  // namespace

SpawnReport SpawnReport::create() {
  UniqueFd fd(::memfd_create("lockstep-spawn-report", MFD_CLOEXEC));
  if (!fd) throw system_error("making a memory file for a rank's report", errno);
  return SpawnReport(std::move(fd));
}

SpawnReport SpawnReport::inherited(int fd) {
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) throw system_error("taking over the report file from spawn()", errno);
  return SpawnReport(UniqueFd(fd));
}

void SpawnReport::write_reached() {
  if (::pwrite(fd_.get(), &kReached, 1, 0) != 1) throw system_error("writing the report to spawn()", errno);
}

void SpawnReport::write_raised(const std::exception_ptr& exception) noexcept {
  char kind = kRaised;
  try {
    std::string text;
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      kind = error.kind() == ErrorKind::peer_lost ? kLostAPeer : kRaised;
      text = error.what();
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
      text = "an exception that is not a std::exception";
    }
    text = text.substr(0, kMaxTextBytes);
    [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), 1);
  } catch (...) {  // no memory left for the text; that there was an exception is told below
  }
  [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), &kind, 1, 0);
}

SpawnReport::Content SpawnReport::read() const {
  std::string bytes(1 + kMaxTextBytes, '\0');
  const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), 0);
  if (got <= 0) return {};
  const char kind = bytes[0];
  return {.reached = true,
          .raised = kind != kReached,
          .lost_a_peer = kind == kLostAPeer,
          .what = bytes.substr(1, static_cast<std::size_t>(got) - 1)};
}

}  // namespace lockstep
