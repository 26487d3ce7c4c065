#include "lockstep/job/launch/orphans.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/own_children.h"
#include "lockstep/job/launch/process_status.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostOrphans = 4096;
// In which a process that shows no environment is looked at again: it may be about to execute another program.
constexpr int kPassesForUnknown = 50;

// Whether text is what an environment looks like, and not the title that a program has written over it.
bool is_environment(const std::string& text) {
  const std::size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && equals < text.find('\0');
}

}  // namespace

Orphans::Orphans(std::string job_id)
    : needle_("LOCKSTEP_JOB_ID=" + std::move(job_id)), spared_(children_of(::getpid())), is_init_(::getpid() == 1) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int Orphans::reap(const std::vector<int>& ours) noexcept {
  int reaped = 0;
  const OwnChildren own = own_children();
  for (const int pid : children_of(::getpid())) {
    if (std::ranges::find(ours, pid) != ours.end() || std::ranges::find(own.pids, pid) != own.pids.end()) continue;
    if (::waitpid(pid, nullptr, WNOHANG | __WALL) == pid) ++reaped;
  }
  return reaped;
}

Orphans::Kind Orphans::kind_of(int pid) const {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.find(needle_) != std::string::npos) return Kind::of_job;
  if (!file.is_open() || is_environment(text)) return Kind::left;
  if (!text.empty()) return is_init_ ? Kind::left : Kind::hidden;
  const auto status = read_thread_status(pid, pid);
  return status && status->state != 'Z' && status->state != 'X' ? Kind::unknown : Kind::left;
}

OtherSearch::Found Orphans::visit(int pid, Reach reach) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return {};
  switch (kind_of(pid)) {
    case Kind::left: return {};
    case Kind::unknown: return {.look_again = passes_ < kPassesForUnknown};
    // Found by its environment, but it may have just come.
    case Kind::of_job: kill_found(pid, pidfd.get(), reach, ::getpgrp()); return {.look_again = true};
    case Kind::hidden: kill_found(pid, pidfd.get(), reach, ::getpgrp()); return {.killed = 1, .look_again = true};
  }
  return {};
}

OtherSearch::Found Orphans::kill_once(Reach reach) noexcept {
  // What has ended just now may have started another, which has not been seen.
  Found found{.look_again = reap(spared_) > 0};
  const OwnChildren own = own_children();
  std::vector<int> family = children_of(::getpid());
  std::erase_if(family, [&](int pid) {
    return std::ranges::find(spared_, pid) != spared_.end() || std::ranges::find(own.pids, pid) != own.pids.end();
  });
  for (std::size_t i = 0; i < family.size() && i < kMostOrphans; ++i) {
    const std::vector<int> more = children_of(family[i]);
    if (kind_of(family[i]) == Kind::left) continue;
    family.insert(family.end(), more.begin(), more.end());
    const Found one = visit(family[i], reach);
    found = {found.killed + one.killed, found.look_again || one.look_again};
  }
  ++passes_;
  return found;
}

}  // namespace lockstep::internal
