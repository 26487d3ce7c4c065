#include "lockstep/job/launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace lockstep::internal {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// "max 100000" or "150000 100000", both in microseconds.
std::optional<double> parse_quota(const std::string& text) {
  std::istringstream fields(text);
  double quota = 0;
  double period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

void lower(std::optional<double>& quota, std::optional<double> other) {
  if (other) quota = std::min(quota.value_or(*other), *other);
}

// One limit file a directory, from the process's own group up to the root: any of them may be the tightest.
template <typename ReadQuota>
std::optional<double> tightest_up_to(const std::string& root, std::string path, ReadQuota read_quota) {
  std::optional<double> quota;
  while (true) {
    lower(quota, read_quota(root + path + "/"));
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return quota;
    path.erase(slash);
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_cgroups(const std::string& cgroups) {
  std::vector<std::pair<std::string, std::string>> parsed;
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    parsed.emplace_back(line.substr(first + 1, second - first - 1), line.substr(second + 1));
  }
  return parsed;
}

std::optional<double> cgroup_quota_cores(const std::string& cgroups, const std::string& root) {
  std::optional<double> quota;
  for (auto [controllers, path] : parse_cgroups(cgroups)) {
    if (path == "/") path.clear();
    if (controllers.empty()) {
      lower(quota, tightest_up_to(root, path, [](const std::string& directory) {
              return parse_quota(read_text(directory + "cpu.max"));
            }));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      lower(quota, tightest_up_to(root + "/cpu", path, [](const std::string& directory) {
              return parse_quota(read_text(directory + "cpu.cfs_quota_us") + " " +
                                 read_text(directory + "cpu.cfs_period_us"));
            }));
    }
  }
  return quota;
}

int available_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) cores = CPU_COUNT(&mask);
  if (const auto quota = cgroup_quota_cores(read_text("/proc/self/cgroup"), "/sys/fs/cgroup")) {
    cores = std::min(cores, static_cast<int>(std::lround(*quota)));
  }
  return std::max(cores, 1);
}

}  // namespace lockstep::internal
