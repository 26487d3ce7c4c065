// What checks of several hosts have found, as one list. Values; no I/O.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/inspect/finding.h"

namespace lockstep::internal {

struct HostFindings {
  std::string host = {};
  Findings findings = {};
  std::optional<double> clock_ahead_seconds = {};  // of this machine's
};

// The findings of each, with the host's name before the subject, and what differs between hosts: versions of Lockstep
// and of libtorch, and the clocks by more than a second. A host without findings is an error.
Findings compare_hosts(const std::vector<HostFindings>& hosts);

// One line of JSON, for another process, and back; Error{invalid_argument} for another text.
std::string line_of(const Findings& findings);
Findings findings_of_line(const std::string& line);

}  // namespace lockstep::internal
