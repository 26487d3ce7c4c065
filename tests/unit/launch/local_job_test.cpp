#include "lockstep/launch/local_job.h"

#include <doctest/doctest.h>

#include <string>

#include <algorithm>

using namespace lockstep;
using namespace lockstep::internal;

namespace {

bool has(const std::vector<std::string>& environment, const std::string& entry) {
  return std::count(environment.begin(), environment.end(), entry) == 1;
}

}  // namespace

TEST_CASE("each name occurs once in a merged environment, with its last value") {
  const char* const base[] = {"PATH=/bin", "RANK=9", "RANKS=8", "EMPTY=", nullptr};
  CHECK(merge_environment(base, {{"RANK", "0"}, {"NEW", "a=b"}, {"RANK", "1"}}) ==
        std::vector<std::string>{"PATH=/bin", "RANKS=8", "EMPTY=", "NEW=a=b", "RANK=1"});
}

TEST_CASE("jobs have different ids, and the ranks of one job share a store and a token, not a recording") {
  JobOptions options;
  options.ranks = 2;
  options.threads_per_rank = 3;
  options.environment = {{"EXTRA", "1"}};
  const LocalJob job(options);
  const LocalJob other(options);
  CHECK(job.id() != other.id());
  const Command first = job.command(0, "/bin/true", {"true"});
  const Command second = job.command(1, "/bin/true", {"true"});
  CHECK(has(first.environment, "RANK=0"));
  CHECK(has(second.environment, "RANK=1"));
  CHECK(has(second.environment, "OMP_NUM_THREADS=3"));
  CHECK(has(second.environment, "EXTRA=1"));
  CHECK(has(second.environment, "LOCKSTEP_JOB_ID=" + job.id()));
  // The token is the same; the memory for its flight recording is each rank's own.
  REQUIRE(first.keep_fds.size() == 2);
  CHECK(first.keep_fds[0] == second.keep_fds.at(0));
  CHECK(first.keep_fds[1] != second.keep_fds.at(1));
  CHECK(has(second.environment, "LOCKSTEP_FLIGHT_FD=" + std::to_string(second.keep_fds[1])));
  CHECK(second.stdin_fd >= 0);
  CHECK(job.description().starts_with("2 ranks on this machine, 3 threads each ("));
}
