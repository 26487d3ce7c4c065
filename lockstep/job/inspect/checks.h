// The checks of `lockstep doctor`: whether this machine can run a job, and what slows it down. Each returns a finding
// for everything that it has looked at. They block for at most a few seconds each.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/job/inspect/finding.h"
#include "lockstep/job/inspect/machine_facts.h"

namespace lockstep::internal {

// Kernel, cores, vector instructions, NUMA, clocks, threads.
Findings check_machine(const MachineFacts& facts);
// Memory, limits on it, shared memory, limits on descriptors, processes and file sizes.
Findings check_memory(const MachineFacts& facts);
// The host's name, a round trip over each network interface, ports.
Findings check_network(const MachineFacts& facts, Deadline deadline);
struct SoftwareWanted {
  std::string version = {};        // of this Lockstep
  std::string torch_version = {};  // for which it was built; empty: without libtorch
  std::string program = {};        // of the user; empty: none
};

// Versions, token, variables, launchers, libtorch: that of Python, and that of the program.
Findings check_software(const MachineFacts& facts, const SoftwareWanted& wanted, Deadline deadline);

}  // namespace lockstep::internal
