#include "lockstep/group/world.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "lockstep/adapters/backends.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"
#include "lockstep/group/connect.h"

namespace lockstep {

World::World(Membership membership, ProcessGroup group)
    : membership_(std::make_unique<Membership>(std::move(membership))),
      group_(std::move(group)),
      watch_(std::make_unique<UncaughtWatch>(group_)),
      exceptions_(std::uncaught_exceptions()) {}

World::~World() {
  if (membership_ == nullptr || std::uncaught_exceptions() <= exceptions_ || !watch_->is_here()) return;
  try {
    const std::string noted = group_.noted_failure();
    group_.abort(noted.empty() ? "an exception ended its program; what it printed tells which"
                               : "it failed in " + noted);
  } catch (const std::exception&) {  // no memory for the text
    group_.abort("an exception ended its program");
  }
}

namespace {

bool behind_a_launcher() { return EnvironmentReader().has("LOCKSTEP_STORE"); }

}  // namespace

World init_process_group(const InitOptions& options) {
  GroupOptions group_options = with_environment(options.group);
  group_options.backend = choose_backend(group_options.backend);  // before anybody is kept waiting
  const Deadline deadline = Deadline::after(options.join.timeout);
  JoinOptions join_options = options.join;
  if (!join_options.bootstrap) join_options.bootstrap = bootstrap_of(group_options.backend);
  Membership membership = join(join_options, process_environment);
  if (membership.size > 1) set_log_rank(membership.rank);
  // Behind a launcher's pipe, standard output would reach the user in blocks of 4 KiB.
  if (behind_a_launcher()) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ProcessGroup group = connect_group(membership, "world", group_options, deadline);
  return World(std::move(membership), std::move(group));
}

}  // namespace lockstep
