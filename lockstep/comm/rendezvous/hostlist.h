// Slurm's short forms of lists. "n[01-03,7],gpu4" -> names; "2(x3),1" -> numbers. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

// The hosts of a list such as SLURM_STEP_NODELIST, in its order; a name may have several pairs of brackets.
// Error{invalid_argument} quotes a list that is malformed or has more than 65,536 hosts.
std::vector<std::string> expand_hosts(std::string_view list);

// The numbers of a list such as SLURM_STEP_TASKS_PER_NODE, "2(x3),1" -> 2, 2, 2, 1. Errors as above.
std::vector<int> expand_counts(std::string_view list);

}  // namespace lockstep::internal
