#include "lockstep/job/launch/job_descriptors.h"

#include <filesystem>
#include <system_error>

#include "lockstep/base/descriptor_limit.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

// A rank's two pipes, its pidfd, its recording and spawn()'s report; its first connection to the store.
constexpr rlim_t kLeastOfRank = 6;
constexpr rlim_t kOfLauncher = 32;

rlim_t open_now() {
  rlim_t count = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}

}  // namespace

JobDescriptors::JobDescriptors(int ranks) : before_(raise_descriptor_limit()) {
  const rlim_t least = open_now() + kOfLauncher + kLeastOfRank * static_cast<rlim_t>(ranks);
  if (before_.rlim_max >= least) return;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} rank{} need the launcher to open {} files and connections, and its hard limit is {}; "
                          "raise that limit (in the shell: ulimit -Hn {}; systemd: LimitNOFILE=; docker: --ulimit "
                          "nofile=), or start fewer ranks",
                          ranks, ranks == 1 ? "" : "s", least, before_.rlim_max, least));
}

JobDescriptors::~JobDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace lockstep::internal
