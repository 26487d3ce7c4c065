#include "lockstep/comm/transport/open_groups.h"

namespace lockstep::internal {

bool OpenGroups::add(GroupId id) {
  const std::lock_guard lock(mutex_);
  return ids_.insert(id).second;
}

void OpenGroups::remove(GroupId id) {
  const std::lock_guard lock(mutex_);
  ids_.erase(id);
}

bool OpenGroups::contains(GroupId id) {
  const std::lock_guard lock(mutex_);
  return ids_.contains(id);
}

}  // namespace lockstep::internal
