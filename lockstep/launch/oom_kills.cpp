#include "lockstep/launch/oom_kills.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/launch/cores.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kName = "oom_kill ";

std::optional<std::string> read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string gibibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(1LL << 30));
}

}  // namespace

OomKills::OomKills() : OomKills(read_whole_file) {}

OomKills::OomKills(ReadFile read_file) : read_file_(std::move(read_file)) {
  std::vector<Counter> candidates;
  for (const auto& [controllers, path] : parse_cgroups(read_file_("/proc/self/cgroup").value_or(""))) {
    if (controllers.empty()) candidates.push_back({"/sys/fs/cgroup" + path + "/memory.events", "cgroup " + path});
    if (controllers != "memory") continue;
    candidates.push_back({"/sys/fs/cgroup/memory" + path + "/memory.oom_control", "cgroup " + path});
    // In a container the path is the host's, and the container's own cgroup lies at the root.
    candidates.push_back({"/sys/fs/cgroup/memory/memory.oom_control", "this container"});
  }
  candidates.push_back({"/proc/vmstat", "this machine"});
  for (Counter& candidate : candidates) {
    const std::optional<std::uint64_t> count = read(candidate.path);
    if (!count) continue;
    before_ = *count;
    counter_ = std::move(candidate);
    return;
  }
}

std::optional<std::uint64_t> OomKills::read(const std::string& path) const {
  const std::optional<std::string> text = read_file_(path);
  if (!text) return std::nullopt;
  std::size_t at = text->find(kName);
  while (at != std::string::npos && at != 0 && (*text)[at - 1] != '\n') at = text->find(kName, at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t count = 0;
  const char* begin = text->data() + at + kName.size();
  if (std::from_chars(begin, text->data() + text->size(), count).ec != std::errc()) return std::nullopt;
  return count;
}

std::string OomKills::describe_kill(std::int64_t peak_bytes) const {
  const std::optional<std::uint64_t> now = counter_ ? read(counter_->path) : std::nullopt;
  const std::string used = peak_bytes > 0 ? fmt::format("; it had used {} at most", gibibytes(peak_bytes)) : "";
  if (!now) return "sent by somebody, or by the kernel when memory ran out" + used;
  const std::uint64_t killed = *now - before_;
  if (killed == 0) return "sent by somebody; the kernel has killed nothing for lack of memory meanwhile";
  return fmt::format("memory ran out: the kernel has killed {} process{} of {} for lack of it since the job began{}",
                     killed, killed == 1 ? "" : "es", counter_->whose, used);
}

}  // namespace lockstep::internal
