// The far end of `lockstep run --hosts`: `lockstep remote-host`, which ssh starts on each host. It reads an order from
// standard input, starts the agent, passes signals on to it, and asks it to stop when standard input ends: then the
// launcher or the connection to it is gone, and if it does not stop in the order's time, it is killed. It reports the
// agent's stage by marks on standard error.
#pragma once

#include <string>

namespace lockstep::internal {

// Blocks until the agent has ended, and returns its exit code as a shell has it, or kRendezvousExitCode, with a line on
// standard error, if none could be started. `program`: this program's file; `version`: of it.
int run_remote_host(const std::string& program, const std::string& version);

// For an agent: says that it has joined the job, if it was started by run_remote_host(), by a byte through the
// descriptor LOCKSTEP_JOINED_FD. Removes the variable, so that the ranks do not have it.
void tell_of_joining();

}  // namespace lockstep::internal
