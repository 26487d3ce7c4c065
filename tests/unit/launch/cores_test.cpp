#include "lockstep/job/launch/cores.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace cores_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// A made-up cgroup file system.
class CgroupRoot {
 public:
  CgroupRoot() {
    char name[] = "/tmp/lockstep-cgroup-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~CgroupRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = path_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

// feature: D-09
TEST_CASE("the quota of cgroup v2 is the tightest on the way up") {
  const CgroupRoot root;
  CHECK_FALSE(cgroup_quota_cores("0::/job/task\n", root.path()).has_value());
  root.write("job/task/cpu.max", "max 100000\n");
  CHECK_FALSE(cgroup_quota_cores("0::/job/task\n", root.path()).has_value());
  root.write("job/cpu.max", "150000 100000\n");
  CHECK(cgroup_quota_cores("0::/job/task\n", root.path()) == 1.5);
  root.write("job/task/cpu.max", "300000 100000\n");
  CHECK(cgroup_quota_cores("0::/job/task\n", root.path()) == 1.5);
  root.write("cpu.max", "50000 100000\n");
  CHECK(cgroup_quota_cores("0::/\n", root.path()) == 0.5);
}

TEST_CASE("the quota of cgroup v1 is read from the hierarchy of its controller") {
  const CgroupRoot root;
  const std::string cgroups = "3:cpuset:/other\n2:cpu,cpuacct:/job\n0::/\n";
  root.write("cpu/job/cpu.cfs_quota_us", "-1\n");
  root.write("cpu/job/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cgroup_quota_cores(cgroups, root.path()).has_value());
  root.write("cpu/job/cpu.cfs_quota_us", "400000\n");
  CHECK(cgroup_quota_cores(cgroups, root.path()) == 4.0);
}

TEST_CASE("damaged files set no limit") {
  const CgroupRoot root;
  root.write("cpu.max", "lots of cores");
  CHECK_FALSE(cgroup_quota_cores("0::/\n", root.path()).has_value());
  CHECK_FALSE(cgroup_quota_cores("nonsense\n0\n:\n", root.path()).has_value());
}

// feature: D-09
TEST_CASE("available cores follow the affinity mask") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(available_cores() == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(available_cores() <= CPU_COUNT(&before));
}

}  // namespace cores_test
