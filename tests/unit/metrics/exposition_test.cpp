#include "tools/metrics/exposition.h"

#include <doctest/doctest.h>

#include <limits>

namespace exposition_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("metrics of a job") {
  WatchedJob status{.job_id = "j", .run_id = "a\"b\\c\nd", .state = JobState::running, .world_size = 1};
  status.ranks = {{.host = "n1",
                   .status = {.rank = 3,
                              .state = RankState::running,
                              .numbers = {.steps = 7,
                                          .waiting_ns = 1'500'000'000,
                                          .values = {{"loss", std::numeric_limits<double>::quiet_NaN()}}}}}};
  const std::string text = tools::exposition_of(status, {.version = "1", .program = "train", .start_seconds = 5});
  const auto has = [&](std::string_view line) { return text.find(line) != std::string::npos; };
  const std::string common = R"({job_id="j",run_id="a\"b\\c\nd")";
  CHECK(has("# TYPE lockstep_steps_total counter\n"));
  CHECK(has("lockstep_steps_total" + common + R"(,rank="3",host="n1"} 7)" + "\n"));
  CHECK(has("lockstep_step_seconds_total" + common + R"(,rank="3",host="n1",phase="waiting"} 1.5)" + "\n"));
  CHECK(has("lockstep_value" + common + R"(,rank="3",host="n1",name="loss"} Nan)" + "\n"));
  CHECK_FALSE(has("lockstep_last_checkpoint_timestamp_seconds"));  // there is none yet
  CHECK_FALSE(has("lockstep_lateness_seconds"));
  status.is_first = false;
  CHECK(tools::exposition_of(status, {}).starts_with("# "));
}

}  // namespace exposition_test
