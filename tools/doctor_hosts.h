// `lockstep doctor --hosts a,b`: the checks of each host, and what differs between them.
#pragma once

#include "lockstep/job/inspect/finding.h"
#include "tools/doctor_command.h"

namespace lockstep::tools {

// Starts a job of one rank on each host, over ssh, which is this program with --line; blocks until it ends. What ssh
// says goes to standard error. Errors as run_over_ssh(), and of the list of hosts.
internal::Findings check_hosts(const DoctorOptions& options);

// What such a rank prints: its rank and the time at once, then its rank and what `check` finds.
void print_for_hosts(internal::Findings (*check)(const DoctorOptions&), const DoctorOptions& options);

}  // namespace lockstep::tools
