// How many processor cores this process may use: its affinity mask, lowered to its cgroup's quota (v1 and v2).
// Thread-safe; reads small files; never fails (what cannot be read sets no limit).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::internal {

// At least 1.
int available_cores();

// The quota alone, in cores, the smallest on the way up the hierarchy; nothing without a quota. `cgroups` is the text
// of /proc/self/cgroup, `root` the mount point (/sys/fs/cgroup).
std::optional<double> cgroup_quota_cores(const std::string& cgroups, const std::string& root);

// The lines of /proc/self/cgroup, "<hierarchy>:<controllers>:<path>", as controllers and path.
std::vector<std::pair<std::string, std::string>> parse_cgroups(const std::string& cgroups);

}  // namespace lockstep::internal
