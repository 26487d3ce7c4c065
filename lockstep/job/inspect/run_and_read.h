// Runs a program for what it prints. Blocks until it ends or the deadline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::internal {

// Its standard output, at most 1 MiB; nothing if it cannot be started, fails, or does not end in time: then it is
// killed. `variables` are added to its environment.
std::optional<std::string> run_and_read(const std::vector<std::string>& command, Deadline deadline,
                                        const std::vector<std::pair<std::string, std::string>>& variables = {});

}  // namespace lockstep::internal
