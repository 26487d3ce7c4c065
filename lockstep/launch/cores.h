// How many processor cores this process may use: its affinity mask, lowered to its cgroup's quota (v1 and v2).
// Thread-safe; reads small files; never fails (what cannot be read sets no limit).
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// At least 1.
int available_cores();

// The quota alone, in cores, the smallest on the way up the hierarchy; nothing without a quota. `cgroups` is the text
// of /proc/self/cgroup, `root` the mount point (/sys/fs/cgroup).
std::optional<double> cgroup_quota_cores(const std::string& cgroups, const std::string& root);

}  // namespace lockstep
