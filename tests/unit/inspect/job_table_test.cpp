#include "lockstep/inspect/job_table.h"

#include <doctest/doctest.h>

#include <string>

namespace job_table_test {

using namespace lockstep::internal;

namespace {

Job job_of_two() {
  JobRank first{.rank = 0, .pid = 10, .state = 'S', .program = "./train", .cpu_seconds = 5, .age_seconds = 100};
  first.resident_bytes = std::uint64_t{1} << 30;
  first.operations = 41;
  first.doing = "in all_reduce(sum) #41";
  first.steps_per_second = 12.5;
  JobRank second = first;
  second.rank = 1;
  second.pid = 11;
  second.state = 'T';
  second.operations = 40;
  second.doing = "after all_reduce(sum) #40";
  second.doing_seconds = 75;
  return {.id = "0123456789abcdef", .launcher_pid = 9, .world_size = 4, .ranks = {first, second}};
}

}  // namespace

TEST_CASE("a job's line has its worst state, and the rank that the others wait for") {
  const std::string text = table_of({job_of_two()}, {});
  CHECK(
      text.find("0123456789abcdef        9    2 of 4       0      1:40 T     10    2.0 GiB   12.5 steps/s  ./train") !=
      std::string::npos);
  CHECK(text.find("  rank 1 is after all_reduce(sum) #40, for 1:15\n") != std::string::npos);
}

TEST_CASE("use of the processor is that since the last look, where there was one") {
  const std::vector<Job> before{job_of_two()};
  std::vector<Job> now = before;
  now[0].ranks[0].cpu_seconds = 7;
  const std::string text = table_of(now, {.ranks = true, .before = &before, .seconds = 4});
  CHECK(text.find("S     50    1.0 GiB") != std::string::npos);
  CHECK(text.find("T      0    1.0 GiB") != std::string::npos);
}

TEST_CASE("ages are short") {
  CHECK(age_text(-1) == "0:00");
  CHECK(age_text(187) == "3:07");
  CHECK(age_text(7387) == "2:03:07");
  CHECK(age_text(4 * 86400 + 7387) == "4 d 02:03");
}

TEST_CASE("without jobs it says so") {
  CHECK(table_of({}, {}) == "no jobs of this user are running on this machine\n");
  CHECK(json_of(std::vector<Job>{}) == "[]\n");
}

}  // namespace job_table_test
