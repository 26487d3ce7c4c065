#include "lockstep/job/launch/oom_kills.h"

#include <doctest/doctest.h>

#include <map>

namespace oom_kills_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Files = std::map<std::string, std::string>;

OomKills counting(const Files& files) {
  return OomKills([&files](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

}  // namespace

// fault: 8
TEST_CASE("a kill for lack of memory in this cgroup is told from one that somebody sent") {
  Files files{{"/proc/self/cgroup", "0::/job\n"},
              {"/sys/fs/cgroup/job/memory.events", "low 0\noom 3\noom_kill 3\noom_group_kill 0\n"},
              {"/proc/vmstat", "oom_kill 9\n"}};
  const OomKills kills = counting(files);
  CHECK(kills.judge_kill(kGiB).text ==
        "sent by a process; the kernel has killed no process for lack of memory since the ranks were started");
  CHECK(kills.judge_kill(kGiB).out_of_memory == false);
  files["/sys/fs/cgroup/job/memory.events"] = "oom_kill 5\n";
  CHECK(kills.judge_kill(3 * kGiB).text ==
        "memory ran out: the kernel has killed 2 processes of cgroup /job for lack of it since the ranks were started; "
        "it had used 3 GiB at most");
  CHECK(kills.judge_kill(0).out_of_memory == true);
}

// fault: 8
TEST_CASE("cgroups of version 1, and a container's, and the machine count too") {
  Files files{{"/proc/self/cgroup", "4:memory:/job\n3:cpu:/\n0::/\n"},
              {"/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"}};
  const OomKills first = counting(files);
  files["/sys/fs/cgroup/memory/job/memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n";
  CHECK(first.judge_kill(0).text ==
        "memory ran out: the kernel has killed 1 process of cgroup /job for lack of it since the ranks were started");

  Files container{{"/proc/self/cgroup", "4:memory:/host/path\n"},
                  {"/sys/fs/cgroup/memory/memory.oom_control", "oom_kill 2\n"}};
  const OomKills second = counting(container);
  container["/sys/fs/cgroup/memory/memory.oom_control"] = "oom_kill 3\n";
  CHECK(second.judge_kill(0).text.find("1 process of this container") != std::string::npos);

  // A root cgroup of version 2 has no such file.
  Files machine{{"/proc/self/cgroup", "0::/\n"}, {"/proc/vmstat", "nr_free_pages 1\noom_kill 7\n"}};
  const OomKills third = counting(machine);
  machine["/proc/vmstat"] = "nr_free_pages 1\noom_kill 8\n";
  CHECK(third.judge_kill(0).text.find("1 process of this machine") != std::string::npos);
}

// fault: 8
TEST_CASE("a rank in a cgroup of its own is killed for lack of memory, which only the machine counts") {
  Files files{{"/proc/self/cgroup", "0::/job\n"},
              {"/sys/fs/cgroup/job/memory.events", "oom_kill 3\n"},
              {"/proc/vmstat", "oom_kill 9\n"}};
  const OomKills kills = counting(files);
  files["/proc/vmstat"] = "oom_kill 10\n";
  const OomKills::Verdict verdict = kills.judge_kill(kGiB);
  CHECK(verdict.text ==
        "possibly for lack of memory: the kernel has killed 1 process of this machine for lack of it since the ranks "
        "were started; it had used 1 GiB at most");
  CHECK(!verdict.out_of_memory);
  // What was killed before is not counted again by who comes later.
  CHECK(counting(files).judge_kill(0).out_of_memory == false);
}

TEST_CASE("where nothing can be read, both are possible") {
  const Files none;
  CHECK(counting(none).judge_kill(kGiB).text ==
        "sent by a process, or by the kernel when memory ran out; it had used 1 GiB at most");
  const Files damaged{{"/proc/vmstat", "oom_kill many\n"}};
  CHECK(counting(damaged).judge_kill(0).text == "sent by a process, or by the kernel when memory ran out");
}

}  // namespace oom_kills_test
