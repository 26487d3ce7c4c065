// An agent's first message, and whether the first host accepts it. Pure but for what hello_of() asks the system.
#pragma once

#include <optional>
#include <string>

#include "lockstep/job/elastic/agent_message.h"
#include "lockstep/job/elastic/agent_options.h"
#include "lockstep/job/elastic/slots.h"

namespace lockstep::internal {

// The name under which this host is known in a job on several: LOCKSTEP_NODE, else the host's own.
std::string agent_host_name();

// Of a job on this host alone without a name, which texts then leave out.
Hello hello_of(const AgentOptions& options);
HostEntry entry_of(int number, const Hello& hello);

// Why they cannot be of one job, if they were started differently. `ours`: the first host's. Arguments of the program
// are compared only where the job has no id of its own: whoever gives one says which hosts belong together.
std::optional<std::string> objection(const Hello& theirs, const Hello& ours);

// "2", "1:4"
std::string range_text(int least, int most);

}  // namespace lockstep::internal
