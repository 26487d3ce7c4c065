#include "lockstep/job/launch/oom_kills.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/cores.h"
#include "lockstep/job/launch/rank_cgroups.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kName = "oom_kill";

std::optional<std::string> read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string gibibytes(std::int64_t bytes) {
  return fmt::format("{:.3g} GiB", static_cast<double>(bytes) / static_cast<double>(1LL << 30));
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
  const auto begin = [this](Counter counter) -> std::optional<Counter> {
    const std::optional<std::uint64_t> count = read(counter.path);
    if (!count) return std::nullopt;
    counter.before = *count;
    return counter;
  };
  for (Counter& candidate : candidates) {
    if (!cgroup_) cgroup_ = begin(std::move(candidate));
  }
  machine_ = begin({"/proc/vmstat", "this machine"});
}

std::optional<std::uint64_t> OomKills::read(const std::string& path) const {
  const std::optional<std::string> text = read_file_(path);
  if (!text) return std::nullopt;
  return counter_in(*text, kName);
}

std::optional<std::uint64_t> OomKills::since(const std::optional<Counter>& counter) const {
  const std::optional<std::uint64_t> now = counter ? read(counter->path) : std::nullopt;
  return now ? std::optional(*now - std::min(*now, counter->before)) : std::nullopt;
}

OomKills::Verdict OomKills::judge_own(const std::string& events, std::int64_t limit_bytes, const std::string& used) {
  if (counter_in(events, kName).value_or(0) == 0) {
    return {"sent by a process; the kernel has killed no process of its cgroup for lack of memory", false};
  }
  // Where the limit of a group around it was reached, or the machine's, only these count "oom".
  if (limit_bytes == 0 || counter_in(events, "oom").value_or(0) == 0) {
    return {"memory ran out: the kernel has killed it, though it had not reached its own limit" + used, true};
  }
  return {fmt::format("it reached its limit of {}, --memory-per-rank{}", bytes_text(limit_bytes), used), true};
}

OomKills::Verdict OomKills::judge_kill(std::int64_t peak_bytes, const RankCgroup* own) const {
  const std::string used = peak_bytes > 0 ? fmt::format("; it had used {} at most", gibibytes(peak_bytes)) : "";
  const auto events = own == nullptr ? std::nullopt : read_file_(own->folder() + "/memory.events");
  if (events) return judge_own(*events, own->limits().memory_bytes, used);
  const std::optional<std::uint64_t> here = since(cgroup_);
  const std::optional<std::uint64_t> anywhere = since(machine_);
  const auto killed = [&](std::uint64_t count, const Counter& counter) {
    return fmt::format("the kernel has killed {} process{} of {} for lack of it since the ranks were started{}", count,
                       count == 1 ? "" : "es", counter.whose, used);
  };
  if (here.value_or(0) > 0) return {"memory ran out: " + killed(*here, *cgroup_), true};
  // The rank may have been in another cgroup, or another program's process was killed.
  if (anywhere.value_or(0) > 0) return {"possibly for lack of memory: " + killed(*anywhere, *machine_), std::nullopt};
  if (!anywhere) return {"sent by a process, or by the kernel when memory ran out" + used, std::nullopt};
  return {"sent by a process; the kernel has killed no process for lack of memory since the ranks were started", false};
}

}  // namespace lockstep::internal
