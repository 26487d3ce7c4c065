#include "lockstep/job/inspect/job_table.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"

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

TEST_CASE("where there are several hosts each rank has its own") {
  Job job = job_of_two();
  job.ranks[0].host = "n1";
  job.ranks[1].host = "n2";
  CHECK(table_of({job}, {}).find("  rank 1 on n2 is after") != std::string::npos);
  CHECK(table_of({job}, {.ranks = true}).find("  rank 0 on n1 ") != std::string::npos);
  job.ranks.clear();
  CHECK(table_of({job}, {}).find("  no ranks run now\n") != std::string::npos);
}

TEST_CASE("what another host says of its ranks is read, and nothing else") {
  const auto read = [](const std::string& text) { return ranks_of_json("n\033[31m2", text); };
  CHECK(read("").empty());
  CHECK(read("[]").empty());
  const std::string one =
      R"({"rank":3,"pid":9,"state":"R","program":"a\u001bb","attempt":1,"cpu_seconds":2.5,"age_seconds":7,)"
      R"("resident_bytes":4096,"doing":"","doing_seconds":0,"operations":5,"operations_per_second":1,)"
      R"("steps_per_second":0})";
  const std::vector<JobRank> ranks = read("[" + one + "]");
  REQUIRE(ranks.size() == 1);
  CHECK(ranks[0].rank == 3);
  CHECK(ranks[0].host == "n[31m2");
  CHECK(ranks[0].program == "ab");
  CHECK(ranks[0].operations == 5);
  for (const std::string text : {"{", "[1]", R"([{"rank":"x"}])", R"([{"rank":1}])"}) {
    CHECK_THROWS_AS(read(text), lockstep::Error);
  }
  CHECK_THROWS_AS(read("[" + one), lockstep::Error);
}

TEST_CASE("a job is found by its id, the beginning of that, or its run id") {
  std::vector<Job> jobs(3);
  jobs[0].id = "aab1";
  jobs[1].id = "aac2";
  jobs[2].id = "aac";
  jobs[0].run_id = jobs[1].run_id = "night";
  jobs[2].run_id = "day";
  CHECK(choose_job(jobs, "aab").id == "aab1");
  CHECK(choose_job(jobs, "aac").id == "aac");
  CHECK(choose_job(jobs, "day").id == "aac");
  for (const char* name : {"aa", "night", "b", "aab12"}) CHECK_THROWS_AS(choose_job(jobs, name), lockstep::Error);
  CHECK_THROWS_WITH(choose_job({}, "a"), "no job has the name a; there are: none of this user on this machine");
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
