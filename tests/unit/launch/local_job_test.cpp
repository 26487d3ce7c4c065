#include "lockstep/job/launch/local_job.h"

#include <doctest/doctest.h>

#include <string>

#include <algorithm>

#include "lockstep/job/launch/attempt.h"
#include "tests/support/expect_error.h"

namespace local_job_test {

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
  options.max_restarts = 5;
  options.environment = {{"EXTRA", "1"}};
  const LocalJob job(options);
  const LocalJob other(options);
  CHECK(job.id() != other.id());
  const Attempt attempt(job, {.generation = 2, .restarts = 1, .world_size = 2, .store = "127.0.0.1:4711"});
  const Command first = attempt.command(0, "/bin/true", {"true"});
  const Command second = attempt.command(1, "/bin/true", {"true"});
  CHECK(has(first.environment, "RANK=0"));
  CHECK(has(second.environment, "RANK=1"));
  CHECK(has(second.environment, "OMP_NUM_THREADS=3"));
  CHECK(has(second.environment, "EXTRA=1"));
  CHECK(has(second.environment, "LOCKSTEP_STORE=127.0.0.1:4711"));
  CHECK(has(second.environment, "LOCKSTEP_GENERATION=2"));
  CHECK(has(second.environment, "RESTART_COUNT=1"));
  CHECK(has(second.environment, "TORCHELASTIC_MAX_RESTARTS=5"));
  CHECK(has(second.environment, "LOCKSTEP_JOB_ID=" + job.id()));
  CHECK(has(second.environment, "TORCHELASTIC_RUN_ID=" + job.id()));
  // The token is the same; the memory for its flight recording is each rank's own.
  REQUIRE(first.keep_fds.size() == 2);
  CHECK(first.keep_fds[0] == second.keep_fds.at(0));
  CHECK(first.keep_fds[1] != second.keep_fds.at(1));
  CHECK(has(second.environment, "LOCKSTEP_FLIGHT_FD=" + std::to_string(second.keep_fds[1])));
  CHECK(second.stdin_fd >= 0);
  CHECK(job.description().starts_with("2 ranks on this machine, 3 threads each ("));
}

TEST_CASE("the ranks of the second host are numbered behind those of the first") {
  const LocalJob job({.ranks = 2, .run_id = "train"});
  const Attempt attempt(job, {.node_rank = 1, .nodes = 2, .first_rank = 3, .world_size = 5, .store = "h:1"});
  const Command command = attempt.command(4, "/bin/true", {"true"});
  CHECK(has(command.environment, "RANK=4"));
  CHECK(has(command.environment, "LOCAL_RANK=1"));
  CHECK(has(command.environment, "WORLD_SIZE=5"));
  CHECK(has(command.environment, "LOCAL_WORLD_SIZE=2"));
  CHECK(has(command.environment, "GROUP_RANK=1"));
  CHECK(has(command.environment, "GROUP_WORLD_SIZE=2"));
  CHECK(has(command.environment, "TORCHELASTIC_RUN_ID=train"));
}

TEST_CASE("the error that a rank has written for its launcher is one printable line, or none") {
  CHECK(error_in_file(R"({"message": {"message": "ValueError: no\nsuch", "extraInfo": {}}})") == "ValueError: no");
  CHECK(error_in_file(R"({"message": "\u001b[31mred"})") == "[31mred");
  for (const char* text : {"", "{", "[]", "{}", R"({"message": 1})", R"({"message": {"message": {"message": "a"}}})"}) {
    CHECK(error_in_file(text).empty());
  }
  CHECK(error_in_file(std::string(ErrorFile::kMaxBytes, '[')).empty());
}

TEST_CASE("a GPU for each rank is one of those that the launcher sees") {
  using Devices = std::vector<std::string>;
  CHECK(devices_of(std::nullopt, 2) == Devices{"0", "1"});
  CHECK(devices_of("4,5", 2) == Devices{"4", "5"});
  CHECK(devices_of("GPU-1a2b, 7,3", 2) == Devices{"GPU-1a2b", "7"});
  CHECK(devices_of("", 2) == Devices{"", ""});
  CHECK(devices_of("-1", 2) == Devices{"-1", "-1"});
  CHECK_ERROR(error_of([] { devices_of("4,5", 3); }), ErrorKind::invalid_argument, "3 ranks need one GPU each",
              "CUDA_VISIBLE_DEVICES is '4,5', which has 2");
  CHECK_ERROR(error_of([] { devices_of("4,-1,5", 2); }), ErrorKind::invalid_argument, "which has 1");
}

}  // namespace local_job_test
