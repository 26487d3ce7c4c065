// The far end of `lockstep run --hosts`: `lockstep remote-host`, which ssh starts on each host. It reads an order from
// standard input, starts the agent, passes signals on to it, and asks it to stop when standard input ends: then the
// launcher or the connection to it is gone.
#pragma once

#include <string>

namespace lockstep::internal {

// Blocks until the agent has ended, and returns its exit code as a shell has it, or kStoreExitCode, with a line on
// standard error, if none could be started. `program`: this program's file; `version`: of it.
int run_remote_host(const std::string& program, const std::string& version);

}  // namespace lockstep::internal
