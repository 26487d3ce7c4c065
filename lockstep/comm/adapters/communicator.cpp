#include "lockstep/comm/adapters/communicator.h"

#include <deque>
#include <mutex>

#include "lockstep/comm/adapters/backend_table.h"

namespace lockstep::internal {
namespace {

struct Registry {
  std::mutex mutex;
  // State below is protected by mutex.
  std::deque<CommunicatorLibrary> libraries;  // the last of a type counts; none is ever removed
};

Registry& registry() {
  static Registry* const registry = [] {
    auto* made = new Registry;  // groups may be used until the very end
    for (const BackendEntry& entry : backend_table()) {
      if (entry.communicators != nullptr) made->libraries.push_back(*entry.communicators);
    }
    return made;
  }();
  return *registry;
}

}  // namespace

const CommunicatorLibrary* communicators_for(at::DeviceType type) noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (auto each = all.libraries.rbegin(); each != all.libraries.rend(); ++each) {
    if (each->type == type) return each->connect == nullptr ? nullptr : &*each;
  }
  return nullptr;
}

void register_communicators(const CommunicatorLibrary& library) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.libraries.push_back(library);
}

}  // namespace lockstep::internal
