#include "lockstep/job/launch/end_note.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr const char* kName = "lockstep-end";
constexpr const char* kLink = "/memfd:lockstep-end (deleted)";
constexpr std::size_t kMostBytes = 4096;

}  // namespace

EndNote::EndNote() : fd_(::memfd_create(kName, MFD_CLOEXEC)) {}

void EndNote::write(int exit_code, const std::string& text) const {
  if (!fd_) return;
  const std::string note = fmt::format("exit code {}{}{}", exit_code, text.empty() ? "" : ": ", text);
  [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), note.data(), std::min(note.size(), kMostBytes), 0);
}

std::optional<UniqueFd> open_end_note(int pid) {
  std::error_code error;
  for (std::filesystem::directory_iterator each(fmt::format("/proc/{}/fd", pid), error), end; !error && each != end;
       each.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each->path(), gone) != kLink) continue;
    UniqueFd fd(::open(each->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (fd) return fd;
  }
  return std::nullopt;
}

std::string read_end_note(const UniqueFd& note) {
  std::string text(kMostBytes, '\0');
  const ssize_t got = ::pread(note.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace lockstep::internal
