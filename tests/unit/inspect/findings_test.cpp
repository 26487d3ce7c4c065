#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "lockstep/job/inspect/checks.h"

namespace findings_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

MachineFacts recorded(std::map<std::string, std::string> files) {
  MachineFacts facts = this_machine();
  facts.file = [files = std::move(files)](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::optional<std::string>() : found->second;
  };
  facts.limit = [](int) { return std::optional(rlimit{RLIM_INFINITY, RLIM_INFINITY}); };
  return facts;
}

Finding find(const Findings& findings, const std::string& subject) {
  for (const Finding& finding : findings) {
    if (finding.subject == subject) return finding;
  }
  FAIL("no finding on ", subject);
  return {};
}

constexpr std::chrono::seconds kPlenty(20);

const std::string kMemory = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n";

}  // namespace

TEST_CASE("the tightest memory limit of the cgroups is found, of both versions") {
  const Findings version_2 = check_memory(recorded({{"/proc/meminfo", kMemory},
                                                    {"/proc/self/cgroup", "0::/job/step\n"},
                                                    {"/sys/fs/cgroup/job/step/memory.max", "max\n"},
                                                    {"/sys/fs/cgroup/job/memory.max", "268435456\n"}}));
  CHECK(find(version_2, "memory").found.ends_with("the cgroup /job is limited to 256.0 MiB"));
  CHECK(find(version_2, "memory").verdict == Verdict::warning);
  const Findings version_1 =
      check_memory(recorded({{"/proc/meminfo", kMemory},
                             {"/proc/self/cgroup", "3:memory:/a\n1:cpu:/b\n"},
                             {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"},
                             {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n"}}));
  CHECK(find(version_1, "memory").found.ends_with("the cgroup / is limited to 4.0 GiB"));
  CHECK(find(version_1, "memory").verdict == Verdict::ok);
  CHECK(find(check_memory(recorded({{"/proc/meminfo", kMemory}})), "memory").found ==
        "15.3 GiB, of which 7.6 GiB can be used now");
}

TEST_CASE("what the processor has is told, and what is missing") {
  const auto of = [](const char* flags) {
    return find(check_machine(recorded({{"/proc/cpuinfo", std::string("flags : ") + flags + " end"}})),
                "vector instructions");
  };
  CHECK(of("sse2 avx avx2 avx512f").found == "AVX-512");
  CHECK(of("sse2 avx avx2").found == "AVX2");
  CHECK(of("fp asimd").found == "NEON");
  CHECK(of("sse2").verdict == Verdict::warning);
}

TEST_CASE("a limit below what a launcher needs has a remedy") {
  MachineFacts facts = recorded({});
  facts.limit = [](int) { return std::optional(rlimit{64, 100}); };
  const Finding files = find(check_memory(facts), "open files");
  CHECK(files.verdict == Verdict::warning);
  CHECK(files.found == "64 (hard limit 100)");
  CHECK_FALSE(files.remedy.empty());
}

TEST_CASE("findings as text and as JSON") {
  const Findings findings{{Verdict::ok, "a", "fine", ""}, {Verdict::error, "b", "bad", "mend it"}};
  CHECK(text_of(findings) == "ok       a: fine\nerror    b: bad\n         -> mend it\n");
  CHECK(worst_of(findings) == Verdict::error);
  CHECK(worst_of({}) == Verdict::ok);
  CHECK(json_of(findings).find("\"verdict\": \"error\"") != std::string::npos);
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1536) == "1.5 KiB");
}

TEST_CASE("the release of torch that Python has is compared with the one of this build") {
  const std::string folder = "/tmp/lockstep-python-" + std::to_string(::getpid());
  const std::string python = folder + "/python3";
  std::filesystem::create_directories(folder);
  MachineFacts facts = this_machine();
  facts.program = [&](const std::string& name) { return name == "python3" ? python : std::string(); };
  const auto with_python_that = [&](const std::string& does) {
    std::ofstream(python) << "#!/bin/sh\n" << does << "\n";
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
    return find(check_software(facts, {.version = "1", .torch_version = "2.13.0+cpu"}, Deadline::after(kPlenty)),
                "torch of Python");
  };
  CHECK(with_python_that("echo 2.13.0+cu128 /x").verdict == Verdict::ok);
  CHECK(with_python_that("echo").found == python + " has none");
  const Finding other = with_python_that("echo 2.12.1 /x");
  CHECK(other.verdict == Verdict::warning);
  CHECK(other.found == "2.12.1 /x; this Lockstep was built for 2.13.0+cpu");
  CHECK_FALSE(other.remedy.empty());
  const Finding broken = with_python_that("exit 1");
  CHECK(broken.verdict == Verdict::warning);
  CHECK(broken.found == python + " cannot be started, or fails");
  std::filesystem::remove_all(folder);
}

}  // namespace findings_test
