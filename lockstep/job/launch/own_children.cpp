#include "lockstep/job/launch/own_children.h"

namespace lockstep::internal {
namespace {

std::mutex g_mutex;
std::vector<int> g_pids;  // protected by it

}  // namespace

OwnChild::OwnChild(const Command& command, const sigset_t& mask) {
  const std::lock_guard lock(g_mutex);
  process_.emplace(ChildProcess::start(command, mask));
  pid_ = process_->pid();
  g_pids.push_back(pid_);
}

OwnChild::~OwnChild() {
  process_.reset();
  const std::lock_guard lock(g_mutex);
  std::erase(g_pids, pid_);
}

OwnChildren own_children() { return {std::unique_lock(g_mutex), g_pids}; }

}  // namespace lockstep::internal
