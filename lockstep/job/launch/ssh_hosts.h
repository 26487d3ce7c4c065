// Runs the agents of a job on its hosts, by OpenSSH's client, and on this host by itself. plan -> ssh -> remote-host ->
// agent. All output comes through the first host's agent; what another one or its ssh says is shown if that host fails,
// or has not joined the job after 5 s.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/launch/ssh_host.h"

namespace lockstep::internal {

// Whether this name is this host's: "localhost", a loopback address, or the host's own name.
bool is_this_host(const std::string& name);

// The host's name as other hosts know it, of a name that ssh's configuration may explain: "gpu1" -> "gpu1.example.org".
std::string resolved_by_ssh(const std::string& ssh, const std::string& name);

// Blocks until all have ended. Signals that ask to stop are passed on to the first agent; SIGTSTP stops this process
// alone, and the job goes on. Returns the job's exit code:
// the first agent's; 3 if a host could not be reached, has no Lockstep, or was lost, or if an agent was killed or ended
// before it had joined the job, which a line on standard error says. Errors as ChildProcess::start().
int run_ssh_hosts(const SshPlan& plan, const std::vector<int>& stop_signals);

}  // namespace lockstep::internal
