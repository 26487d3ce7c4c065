#include "lockstep/launch/descriptor_limit.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// A rank's two pipes, its pidfd, its recording and spawn()'s report; its first connection to the store.
constexpr rlim_t kLeastOfRank = 6;
constexpr rlim_t kSpareOfRank = 2;  // further connections
constexpr rlim_t kOfLauncher = 32;

rlim_t open_now() {
  rlim_t count = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}

}  // namespace

DescriptorLimit::DescriptorLimit(int ranks) {
  if (::getrlimit(RLIMIT_NOFILE, &before_) != 0) throw system_error("asking for the limit on descriptors", errno);
  const rlim_t own = open_now() + kOfLauncher;
  const rlim_t least = own + kLeastOfRank * static_cast<rlim_t>(ranks);
  if (before_.rlim_max < least) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} rank{} need the launcher to open {} files and connections, and its hard limit is {}; "
                            "raise that limit (in the shell: ulimit -Hn {}; systemd: LimitNOFILE=; docker: --ulimit "
                            "nofile=), or start fewer ranks",
                            ranks, ranks == 1 ? "" : "s", least, before_.rlim_max, least));
  }
  const rlim_t wanted = std::min(before_.rlim_max, least + kSpareOfRank * static_cast<rlim_t>(ranks));
  if (before_.rlim_cur >= wanted) return;
  const rlimit raised{.rlim_cur = wanted, .rlim_max = before_.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) throw system_error("raising the limit on descriptors", errno);
}

DescriptorLimit::~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace lockstep::internal
