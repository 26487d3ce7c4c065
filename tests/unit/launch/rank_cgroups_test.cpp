#include "lockstep/job/launch/rank_cgroups.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/job/launch/oom_kills.h"

namespace rank_cgroups_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr const char* kMounts =
    "24 30 0:22 / /proc rw,nosuid - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "35 31 0:30 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder with the files that a cgroup has.
class Group {
 public:
  Group() {
    std::string folder = std::filesystem::temp_directory_path() / "lockstep_group_XXXXXX";
    REQUIRE(::mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    put("cgroup.type", "domain\n");
    put("cgroup.procs", "");
    put("cgroup.subtree_control", "");
    put("cgroup.controllers", "cpuset cpu io memory pids\n");
  }
  ~Group() { std::filesystem::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ + "/" + name) << text; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

constexpr RankLimits kMemory{.memory_bytes = 1 << 30};
constexpr RankLimits kCpus{.cpus = 0.5};

}  // namespace

TEST_CASE("a process's cgroup is found where version 2 is mounted") {
  CHECK(find_own_cgroup("4:memory:/job\n0::/a/b\n", kMounts) == "/sys/fs/cgroup/unified/a/b");
  CHECK(find_own_cgroup("0::/\n", kMounts) == "/sys/fs/cgroup/unified");
  // A part of the hierarchy, as in containers.
  const std::string part = "40 31 0:38 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  CHECK(find_own_cgroup("0::/docker/abc/x\n", part) == "/sys/fs/cgroup/x");
  CHECK(has(refusal([&] { find_own_cgroup("0::/docker/abcd\n", part); }), "'/docker/abcd', which is not mounted here"));
  CHECK(has(refusal([&] { find_own_cgroup("0::/../other\n", kMounts); }), "'/../other', which is not mounted here"));
  CHECK(has(refusal([&] { find_own_cgroup("4:memory:/job\n", kMounts); }), "this process is in no v2 cgroup"));
  const std::string none =
      refusal([&] { find_own_cgroup("0::/\n", "31 23 0:28 / /x rw - cgroup cgroup rw,memory\n"); });
  CHECK(has(none, "no v2 cgroup hierarchy is mounted here"));
  CHECK(has(none, "systemd-run --user --scope -p Delegate=yes lockstep run"));
}

TEST_CASE("a cgroup that can be divided has the controllers, may be written to, and holds nobody else") {
  const Group group;
  CHECK(controllers_for(group.folder(), kMemory, 7) == std::vector<std::string>{"memory"});
  CHECK(controllers_for(group.folder(), kCpus, 7) == std::vector<std::string>{"memory", "cpu"});
  group.put("cgroup.procs", "7\n");
  CHECK(controllers_for(group.folder(), kMemory, 7).size() == 1);
  group.put("cgroup.procs", "7\n8\n9\n");
  CHECK(has(refusal([&] { controllers_for(group.folder(), kMemory, 7); }), "also holds 2 other processes (8, ...)"));
  // Only the root of the hierarchy has no type, and may.
  std::filesystem::remove(group.folder() + "/cgroup.type");
  CHECK(controllers_for(group.folder(), kMemory, 7).size() == 1);

  group.put("cgroup.controllers", "cpu pids\n");
  CHECK(
      has(refusal([&] { controllers_for(group.folder(), kMemory, 7); }), "no controller 'memory' (it has 'cpu pids'"));
  CHECK(controllers_for(group.folder(), kCpus, 7) == std::vector<std::string>{"cpu"});
  group.put("cgroup.controllers", "");
  CHECK(has(refusal([&] { controllers_for(group.folder(), kCpus, 7); }), "no controller 'cpu' (it has ''"));
  group.put("cgroup.controllers", "cpu memory\n");
  std::filesystem::remove(group.folder() + "/cgroup.subtree_control");
  CHECK(has(refusal([&] { controllers_for(group.folder(), kCpus, 7); }),
            "cgroup.subtree_control is not possible: No such file"));
}

TEST_CASE("sizes are read as dd reads them") {
  CHECK(parse_size("8GiB") == std::int64_t{8} << 30);
  CHECK(parse_size("500M") == std::int64_t{500} << 20);
  CHECK(parse_size("1.5G") == std::int64_t{3} << 29);
  CHECK(parse_size("2TB") == 2'000'000'000'000);
  CHECK(parse_size("1048576") == 1 << 20);
  for (const char* text : {"", "G", "50%", "-1G", "0", "1GB2", "1g", "nan", "inf", "8 GiB", "1e30", "99999999T"}) {
    CAPTURE(text);
    CHECK(!parse_size(text));
  }
  CHECK(bytes_text(std::int64_t{8} << 30) == "8 GiB");
  CHECK(bytes_text(std::int64_t{500} << 20) == "500 MiB");
  CHECK(describe({.memory_bytes = 1 << 20, .cpus = 1}) == "1 MiB of memory, 1 CPU");
  CHECK(counter_in("oom 3\noom_kill 4\nmany x\n", "oom_kill") == 4);
  CHECK(!counter_in("oom_kill 4\nmany x\n", "oom"));
  CHECK(!counter_in("oom_kill 4\nmany x\n", "many"));
}

// fault: 8
TEST_CASE("a rank's own group tells its limit from the lack of memory around it") {
  constexpr std::int64_t kLimit = std::int64_t{8} << 30;
  const OomKills::Verdict own =
      OomKills::judge_own("max 9\noom 1\noom_kill 3\n", kLimit, "; it had used 7 GiB at most");
  CHECK(own.text == "it reached its limit of 8 GiB, --memory-per-rank; it had used 7 GiB at most");
  CHECK(own.out_of_memory == true);
  const OomKills::Verdict around = OomKills::judge_own("max 0\noom 0\noom_kill 1\n", kLimit, "");
  CHECK(around.text == "memory ran out: the kernel has killed it, though it had not reached its own limit");
  CHECK(around.out_of_memory == true);
  CHECK(OomKills::judge_own("oom 1\noom_kill 1\n", 0, "").text == around.text);
  CHECK(OomKills::judge_own("oom 0\noom_kill 0\n", kLimit, "").out_of_memory == false);
}

}  // namespace rank_cgroups_test
