// The checks of `lockstep doctor`: whether this machine can run a job, and what slows it down. Each returns a finding
// for everything that it has looked at. They block for at most a few seconds each.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/inspect/finding.h"
#include "lockstep/inspect/machine_facts.h"

namespace lockstep::internal {

// Kernel, cores, vector instructions, NUMA, clocks, threads.
Findings check_machine(const MachineFacts& facts);
// Memory, limits on it, shared memory, limits on descriptors, processes and file sizes.
Findings check_memory(const MachineFacts& facts);
// The host's name, a round trip over each network interface, ports.
Findings check_network(const MachineFacts& facts, Deadline deadline);
// Token, variables, launchers, libtorch: that of Python, and that of `program` if it is not empty.
Findings check_software(const MachineFacts& facts, const std::string& program, Deadline deadline);

}  // namespace lockstep::internal
