// The ids of the groups that are open here. Thread-safe.
#pragma once

#include <mutex>
#include <unordered_set>

#include "lockstep/comm/transport/checked_stream.h"

namespace lockstep::internal {

class OpenGroups {
 public:
  bool add(GroupId id);  // false if it is there
  void remove(GroupId id);
  bool contains(GroupId id);

 private:
  std::mutex mutex_;
  std::unordered_set<GroupId> ids_;
};

}  // namespace lockstep::internal
