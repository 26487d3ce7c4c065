#include "lockstep/job/launch/rank_cgroups.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/cores.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

constexpr int kPeriodUs = 100'000;  // the kernel's own choice
constexpr Duration kForLastProcess = std::chrono::seconds(1);
constexpr std::string_view kPrefix = "lockstep-";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("--memory-per-rank and --cpus-per-rank need a v2 cgroup that the launcher may "
                          "divide: {}. Start it in a separate one, as with 'systemd-run --user --scope -p Delegate=yes "
                          "lockstep run ...'; in a pod or a batch job, set the limits of the pod or job instead",
                          why));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

std::int64_t counter(const std::string& path, std::string_view name) {
  return static_cast<std::int64_t>(counter_in(read_text(path), name).value_or(0));
}

// 0, or errno. One write: the kernel takes each as a whole.
int try_write(const std::string& path, std::string_view text) noexcept {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return errno;
  return ::write(fd.get(), text.data(), text.size()) < 0 ? errno : 0;
}

void write_setting(const std::string& path, const std::string& text) {
  if (const int error = try_write(path, text); error != 0) {
    throw system_error(fmt::format("writing '{}' to {} (--memory-per-rank, --cpus-per-rank)", text, path), error);
  }
}

void make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0755) != 0) throw system_error(fmt::format("making the cgroup {}", folder), errno);
}

std::string switches(char sign, const std::vector<std::string>& controllers) {
  std::string text;
  for (const std::string& each : controllers) text += fmt::format("{}{}{}", text.empty() ? "" : " ", sign, each);
  return text;
}

// That of the whole hierarchy may have parts and processes. It has no type.
bool is_root(const std::string& folder) { return ::access((folder + "/cgroup.type").c_str(), F_OK) != 0; }

// A launcher that was killed has left its groups. Those with processes cannot be removed.
void remove_dead(const std::string& own) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(own, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix) || !entry.is_directory(ignored)) continue;
    const std::string pid = name.substr(kPrefix.size());
    if (pid != std::to_string(::getpid()) && fs::exists("/proc/" + pid, ignored)) continue;
    std::vector<std::string> parts;
    for (const auto& part : fs::directory_iterator(entry.path(), ignored)) {
      if (part.is_directory(ignored)) parts.push_back(part.path());
    }
    for (const std::string& part : parts) ::rmdir(part.c_str());
    ::rmdir(entry.path().c_str());
  }
}

// As a line of mountinfo has it: "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw".
struct Mount {
  std::string root, point;
};

std::vector<Mount> cgroup_mounts(const std::string& mounts) {
  std::vector<Mount> found;
  std::istringstream lines(mounts);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = words_of(line);
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || fields.end() - dash < 2 || dash[1] != "cgroup2") continue;
    found.push_back({fields[3] == "/" ? "" : fields[3], fields[4]});
  }
  return found;
}

}  // namespace

std::string find_own_cgroup(const std::string& cgroups, const std::string& mounts) {
  const std::vector<Mount> all = cgroup_mounts(mounts);
  if (all.empty()) refuse("no v2 cgroup hierarchy is mounted here");
  for (auto [controllers, path] : parse_cgroups(cgroups)) {
    if (!controllers.empty()) continue;
    if (path == "/") path.clear();
    for (const Mount& mount : all) {
      if (path.starts_with("/..") || !path.starts_with(mount.root)) continue;
      const std::string rest = path.substr(mount.root.size());
      if (rest.empty() || rest.starts_with('/')) return mount.point + rest;
    }
    refuse(fmt::format("this process is in '{}', which is not mounted here", path));
  }
  refuse("this process is in no v2 cgroup");
}

std::vector<std::string> controllers_for(const std::string& folder, const RankLimits& limits, int pid) {
  const std::vector<std::string> there = words_of(read_text(folder + "/cgroup.controllers"));
  std::vector<std::string> wanted;
  if (contains(there, "memory")) wanted.emplace_back("memory");
  if (limits.cpus > 0) wanted.emplace_back("cpu");
  const char* const missing = limits.memory_bytes > 0 && !contains(there, "memory") ? "memory"
                              : limits.cpus > 0 && !contains(there, "cpu")          ? "cpu"
                                                                                    : nullptr;
  if (missing != nullptr) {
    refuse(fmt::format("{} has no controller '{}' (it has '{}'; others may belong to cgroups v1, or not be delegated)",
                       folder, missing, fmt::join(there, " ")));
  }
  for (const char* file : {"", "/cgroup.procs", "/cgroup.subtree_control"}) {
    if (::access((folder + file).c_str(), W_OK) == 0) continue;
    refuse(fmt::format("writing to {}{} is not possible: {}", folder, file, std::strerror(errno)));
  }
  if (is_root(folder)) return wanted;
  std::vector<std::string> others = words_of(read_text(folder + "/cgroup.procs"));
  std::erase(others, std::to_string(pid));
  if (!others.empty()) {
    refuse(fmt::format("{} also holds {} other process{} ({}{}), and a cgroup with processes cannot be divided", folder,
                       others.size(), others.size() == 1 ? "" : "es", others.front(),
                       others.size() > 1 ? ", ..." : ""));
  }
  return wanted;
}

RankCgroup::RankCgroup(std::string folder, const RankLimits& limits) : folder_(std::move(folder)), limits_(limits) {
  make_folder(folder_);
  try {
    if (limits.memory_bytes > 0) {
      write_setting(folder_ + "/memory.max", std::to_string(limits.memory_bytes));
      // Swapping instead, a rank would keep all others waiting. The file is missing where there is no swap at all.
      const int error = try_write(folder_ + "/memory.swap.max", "0");
      if (error != 0 && error != ENOENT) throw system_error("writing to " + folder_ + "/memory.swap.max", error);
      // A rank that has lost one of its processes is not well.
      write_setting(folder_ + "/memory.oom.group", "1");
    }
    if (limits.cpus > 0) {
      write_setting(folder_ + "/cpu.max", fmt::format("{} {}", std::llround(limits.cpus * kPeriodUs), kPeriodUs));
    }
    processes_ = UniqueFd(::open((folder_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!processes_) throw system_error("opening " + folder_ + "/cgroup.procs", errno);
  } catch (const Error&) {
    ::rmdir(folder_.c_str());
    throw;
  }
}

// A process that was killed is there until it has ended, and the kernel tells of the last one.
RankCgroup::~RankCgroup() {
  processes_.reset();
  const UniqueFd events(::open((folder_ + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  const Deadline limit = Deadline::after(kForLastProcess);
  char text[256];
  while (events && ::pread(events.get(), text, sizeof text, 0) >= 0) {
    if (::rmdir(folder_.c_str()) == 0 || errno != EBUSY || limit.expired()) return;
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, limit.poll_timeout_ms());
  }
}

LimitUse RankCgroup::use() const {
  const std::string cpu = folder_ + "/cpu.stat";
  LimitUse use{.limits = limits_};
  use.memory_reached = limits_.memory_bytes > 0 && counter(folder_ + "/memory.events", "oom") > 0;
  use.peak_bytes = counter_in("peak " + read_text(folder_ + "/memory.peak"), "peak").value_or(0);
  use.periods = counter(cpu, "nr_periods");
  use.throttled = counter(cpu, "nr_throttled");
  use.throttled_us = counter(cpu, "throttled_usec");
  return use;
}

JobCgroup::JobCgroup(const RankLimits& limits)
    : limits_(limits),
      own_(find_own_cgroup(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"))),
      folder_(fmt::format("{}/{}{}", own_, kPrefix, ::getpid())),
      controllers_(controllers_for(own_, limits, ::getpid())) {
  remove_dead(own_);
  make_folder(folder_);
  try {
    divide();
  } catch (const Error&) {
    undo();
    throw;
  }
}

JobCgroup::~JobCgroup() { undo(); }

std::string JobCgroup::folder_of(int rank, int attempt) const {
  return fmt::format("{}/rank_{}.{}", folder_, rank, attempt);
}

void JobCgroup::divide() {
  make_folder(folder_ + "/launcher");
  write_setting(folder_ + "/launcher/cgroup.procs", "0");
  write_setting(own_ + "/cgroup.subtree_control", switches('+', controllers_));
  write_setting(folder_ + "/cgroup.subtree_control", switches('+', controllers_));
}

// As far as it goes: what is left is the next launcher's to remove, or of who has made the group.
void JobCgroup::undo() noexcept {
  try_write(folder_ + "/cgroup.subtree_control", switches('-', controllers_));
  // The root's may be in use by others, and has not kept this process from being there.
  if (!is_root(own_)) try_write(own_ + "/cgroup.subtree_control", switches('-', controllers_));
  try_write(own_ + "/cgroup.procs", "0");
  ::rmdir((folder_ + "/launcher").c_str());
  ::rmdir(folder_.c_str());
}

}  // namespace lockstep::internal
