#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/inspect/checks.h"
#include "lockstep/job/launch/cores.h"

namespace lockstep::internal {
namespace {

constexpr double kMiB = 1 << 20;

struct Cgroup {
  std::string path;
  double limit_bytes = 0;  // 0: none
};

double limit_in(const MachineFacts& facts, const std::string& path) {
  const std::string text = facts.file(path).value_or("");
  constexpr double kNoLimit = 1e18;  // version 1 writes a very large number
  const double limit = text.empty() || text.starts_with("max") ? 0 : std::strtod(text.c_str(), nullptr);
  return limit < kNoLimit ? limit : 0;
}

// The tightest on the way up the hierarchy.
Cgroup memory_cgroup(const MachineFacts& facts) {
  Cgroup tightest;
  for (auto [controllers, path] : parse_cgroups(facts.file("/proc/self/cgroup").value_or(""))) {
    const bool version_2 = controllers.empty();
    if (!version_2 && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string name = version_2 ? "/memory.max" : "/memory.limit_in_bytes";
    while (true) {
      if (path == "/") path.clear();
      const double limit = limit_in(facts, root + path + name);
      if (limit > 0 && (tightest.limit_bytes == 0 || limit < tightest.limit_bytes)) tightest = {path, limit};
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.erase(slash);
    }
  }
  return tightest;
}

Finding memory(const MachineFacts& facts) {
  const std::string info = facts.file("/proc/meminfo").value_or("");
  const double total = number_of(info, "MemTotal:").value_or(0) * 1024;
  const double free = number_of(info, "MemAvailable:").value_or(0) * 1024;
  const Cgroup cgroup = memory_cgroup(facts);
  Finding finding{.subject = "memory",
                  .found = fmt::format("{}, of which {} can be used now", bytes_text(total), bytes_text(free))};
  if (cgroup.limit_bytes > 0) {
    finding.found += fmt::format("; the cgroup {} is limited to {}", cgroup.path.empty() ? "/" : cgroup.path,
                                 bytes_text(cgroup.limit_bytes));
  }
  const double usable = cgroup.limit_bytes > 0 ? std::min(free, cgroup.limit_bytes) : free;
  if (usable > 0 && usable < 512 * kMiB) {
    finding.verdict = Verdict::warning;
    finding.remedy = "a rank with libtorch needs about 300 MiB; the kernel kills ranks when memory runs out";
  }
  return finding;
}

// Ranks of a host share an anonymous memory file.
Finding memory_files() {
  const UniqueFd fd(::memfd_create("lockstep-doctor", MFD_CLOEXEC));
  if (!fd) {
    return {Verdict::error, "memory that ranks share", fmt::format("memfd_create fails: {}", std::strerror(errno)),
            "the ranks of a host fall back to TCP, and lockstep run cannot start; allow memfd_create in the sandbox"};
  }
  if (const int error = resize_file(fd.get(), std::uint64_t{256} << 20); error != 0) {
    return {Verdict::warning, "memory that ranks share",
            fmt::format("a memory file of 256 MiB cannot be made: {}", std::strerror(error)),
            "raise the limit on file sizes (ulimit -f unlimited); ranks may use TCP otherwise"};
  }
  return {.subject = "memory that ranks share", .found = "memory files of 256 MiB and more can be made"};
}

Finding shared_memory_folder(const MachineFacts& facts) {
  const auto system = facts.file_system("/dev/shm");
  if (!system) {
    return {Verdict::warning, "/dev/shm", "it does not exist",
            "Lockstep does not need it, but PyTorch's data loaders do: mount a tmpfs there"};
  }
  const double total = static_cast<double>(system->f_blocks) * static_cast<double>(system->f_frsize);
  const double free = static_cast<double>(system->f_bavail) * static_cast<double>(system->f_frsize);
  Finding finding{.subject = "/dev/shm", .found = fmt::format("{}, {} free", bytes_text(total), bytes_text(free))};
  if (free < 128 * kMiB) {
    finding.verdict = Verdict::warning;
    finding.remedy =
        "Lockstep does not need it, but PyTorch's data loaders do: docker run --shm-size=1g, or an emptyDir with "
        "medium: Memory";
  }
  return finding;
}

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? bytes_text(static_cast<double>(limit)) : std::to_string(limit);
}

Finding limit_on(const MachineFacts& facts, int resource, const char* subject, bool bytes, rlim_t wanted,
                 const char* remedy) {
  const auto limit = facts.limit(resource);
  if (!limit) return {.subject = subject, .found = "not reported"};
  Finding finding{.subject = subject,
                  .found = fmt::format("{} (hard limit {})", limit_text(limit->rlim_cur, bytes),
                                       limit_text(limit->rlim_max, bytes))};
  // The launcher raises soft limits by itself.
  if (limit->rlim_max < wanted) {
    finding.verdict = Verdict::warning;
    finding.remedy = remedy;
  }
  return finding;
}

}  // namespace

Findings check_memory(const MachineFacts& facts) {
  return {memory(facts),
          memory_files(),
          shared_memory_folder(facts),
          limit_on(facts, RLIMIT_MEMLOCK, "locked memory", true, rlim_t{8} << 20,
                   "RDMA network cards and pinned memory for GPUs need a higher limit: ulimit -l unlimited"),
          limit_on(
              facts, RLIMIT_NOFILE, "open files", false, 1024,
              "a launcher needs 7 files for each of its ranks, and a rank needs 1 for each rank on other hosts: ulimit "
              "-Hn 65536"),
          limit_on(facts, RLIMIT_NPROC, "processes and threads", false, 1024,
                   "ranks have tens of threads each: ulimit -Hu 65536, or TasksMax= in systemd"),
          limit_on(facts, RLIMIT_FSIZE, "size of files", true, rlim_t{1} << 30,
                   "it also applies to memory files and checkpoints: ulimit -Hf unlimited")};
}

}  // namespace lockstep::internal
