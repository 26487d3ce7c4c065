#include "tools/report/run_names.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

using Parts = std::vector<std::string>;

Parts parts_of(const std::filesystem::path& path) {
  Parts parts;
  for (const auto& part : path.relative_path()) {
    if (!part.empty()) parts.push_back(part.string());
  }
  if (parts.empty()) parts.emplace_back("root");
  return parts;
}

std::string last_parts(const Parts& parts, std::size_t count) {
  const std::size_t begin = parts.size() - std::min(count, parts.size());
  return fmt::format("{}", fmt::join(parts.begin() + static_cast<std::ptrdiff_t>(begin), parts.end(), "/"));
}

}  // namespace

std::vector<std::string> names_of_runs(const std::vector<std::filesystem::path>& paths) {
  std::vector<Parts> all;
  std::size_t most = 1;
  for (const std::filesystem::path& path : paths) {
    all.push_back(parts_of(path));
    most = std::max(most, all.back().size());
  }
  std::vector<std::size_t> counts(paths.size(), 1);
  for (std::size_t round = 0; round < most; ++round) {
    std::vector<std::string> names;
    for (std::size_t run = 0; run < all.size(); ++run) names.push_back(last_parts(all[run], counts[run]));
    bool is_any_equal = false;
    for (std::size_t run = 0; run < names.size(); ++run) {
      if (std::ranges::count(names, names[run]) == 1) continue;
      is_any_equal = true;
      ++counts[run];
    }
    if (!is_any_equal) return names;
  }
  std::vector<std::filesystem::path> sorted = paths;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  throw lockstep::Error(lockstep::ErrorKind::invalid_argument,
                        fmt::format("the run {} is given twice", twice == sorted.end() ? "" : twice->string()));
}

}  // namespace lockstep::tools
