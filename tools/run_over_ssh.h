// `lockstep run --hosts a,b:4`: starts an agent on each host, over ssh.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/run_options.h"

namespace lockstep::tools {

using namespace internal;

// Blocks until the job has ended; returns its exit code. Errors as run_ssh_hosts(); ExecFailed if there is no ssh.
int run_over_ssh(const RunOptions& options);

// "a,b:4,[fd00::1]:2" -> names and ranks, 0 where there is no number. Error{invalid_argument} quotes what is neither.
std::vector<std::pair<std::string, int>> parse_hosts(const std::string& text);

// The arguments of `lockstep` for the agent of one of the hosts.
std::vector<std::string> agent_arguments(const RunOptions& options, int host);

// `lockstep remote-host`, which ssh starts. Returns its exit code.
int remote_host_command();

}  // namespace lockstep::tools
