// Short names for runs that lie in different directories. Pure.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tools {

// The last parts of each path, as many as make it differ from the others: /a/out, /b/out, /c -> "a/out", "b/out", "c".
// Error{invalid_argument}: two paths are the same. REQUIRES: absolute paths without links, "." and "..".
std::vector<std::string> names_of_runs(const std::vector<std::filesystem::path>& paths);

}  // namespace lockstep::tools
