#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/inspect/checks.h"
#include "lockstep/job/launch/cores.h"

namespace lockstep::internal {
namespace {

Finding kernel() {
  utsname name{};
  ::uname(&name);
  int major = 0;
  int minor = 0;
  const bool known = std::sscanf(name.release, "%d.%d", &major, &minor) == 2;
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  Finding finding{.subject = "kernel", .found = fmt::format("{} {} on {}", name.sysname, name.release, name.machine)};
  if (!self) {
    finding.verdict = Verdict::error;
    finding.found += fmt::format("; pidfd_open fails: {}", std::strerror(errno));
    finding.remedy = "Lockstep needs Linux 5.9 or newer, and a sandbox that allows pidfd_open";
  } else if (known && (major < 5 || (major == 5 && minor < 9))) {
    finding.verdict = Verdict::error;
    finding.remedy = "Lockstep needs Linux 5.9 or newer";
  }
  return finding;
}

Finding cores(const MachineFacts& facts) {
  const int available = available_cores();
  const auto online = static_cast<int>(std::thread::hardware_concurrency());
  const auto quota = cgroup_quota_cores(facts.file("/proc/self/cgroup").value_or(""), "/sys/fs/cgroup");
  Finding finding{.subject = "cores", .found = fmt::format("{} of {} can be used", available, online)};
  if (quota) finding.found += fmt::format("; the cgroup's quota is {:.2f}", *quota);
  if (quota && *quota < 1) {
    finding.verdict = Verdict::warning;
    finding.remedy = "with less than one core, ranks run only part of the time; raise the CPU limit of the container";
  }
  return finding;
}

Finding vectors(const MachineFacts& facts) {
  const std::string info = facts.file("/proc/cpuinfo").value_or("");
  const auto has = [&](const char* flag) { return info.find(fmt::format(" {} ", flag)) != std::string::npos; };
  Finding finding{.subject = "vector instructions"};
  if (has("avx512f")) {
    finding.found = "AVX-512";
  } else if (has("avx2")) {
    finding.found = "AVX2";
  } else if (has("asimd")) {
    finding.found = "NEON";
  } else {
    finding.verdict = Verdict::warning;
    finding.found = "neither AVX2 nor NEON is reported";
    finding.remedy = "reductions are slower; a virtual machine may hide its host's instructions (use CPU type 'host')";
  }
  return finding;
}

Finding numa(const MachineFacts& facts) {
  std::string nodes = facts.file("/sys/devices/system/node/online").value_or("");
  while (!nodes.empty() && nodes.back() == '\n') nodes.pop_back();
  Finding finding{.subject = "NUMA nodes", .found = nodes.empty() ? "not reported" : nodes};
  if (nodes.find_first_of("-,") != std::string::npos) {
    finding.remedy = "lockstep run --bind numa keeps each rank and its memory on one node";
  }
  return finding;
}

Finding clocks(const MachineFacts& facts) {
  std::string source =
      facts.file("/sys/devices/system/clocksource/clocksource0/current_clocksource").value_or("not reported");
  while (!source.empty() && source.back() == '\n') source.pop_back();
  timex state{};
  const bool synchronised = ::adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  return {.subject = "clocks",
          .found = fmt::format("{}; the wall clock is {}synchronised", source, synchronised ? "" : "not "),
          .remedy = synchronised ? "" : "times in the logs of several hosts may differ; nothing else depends on it"};
}

Finding threads(const MachineFacts& facts) {
  const int available = available_cores();
  try {
    const auto wanted = EnvironmentReader(facts.environment).number("OMP_NUM_THREADS");
    if (!wanted) {
      return {.subject = "threads", .found = "OMP_NUM_THREADS is not set; lockstep run divides the cores among ranks"};
    }
    Finding finding{.subject = "threads", .found = fmt::format("OMP_NUM_THREADS is {}", *wanted)};
    if (*wanted > available) {
      finding.verdict = Verdict::warning;
      finding.remedy = fmt::format("each rank gets more threads than the machine has cores ({}); unset it", available);
    }
    return finding;
  } catch (const Error& error) {
    return {Verdict::warning, "threads", error.what(), "unset OMP_NUM_THREADS, or set it to one number"};
  }
}

}  // namespace

Findings check_machine(const MachineFacts& facts) {
  return {kernel(), cores(facts), vectors(facts), numa(facts), clocks(facts), threads(facts)};
}

}  // namespace lockstep::internal
