#include "lockstep/group/world.h"

#include <cstdlib>
#include <exception>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/group/connect.h"

namespace lockstep {

World::World(Membership membership, ProcessGroup group)
    : membership_(std::make_unique<Membership>(std::move(membership))),
      group_(std::move(group)),
      exceptions_(std::uncaught_exceptions()) {}

World::~World() {
  if (membership_ != nullptr && std::uncaught_exceptions() > exceptions_) {
    group_.abort("an exception ended its program");
  }
}

World init_process_group(const InitOptions& options) {
  const Deadline deadline = Deadline::after(options.join.timeout);
  Membership membership = join(options.join, [](const char* name) -> const char* { return std::getenv(name); });
  if (membership.size > 1) set_log_rank(membership.rank);
  ProcessGroup group = connect_group(membership, "world", options.group, deadline);
  return World(std::move(membership), std::move(group));
}

}  // namespace lockstep
