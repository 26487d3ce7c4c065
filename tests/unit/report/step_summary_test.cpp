#include "tools/report/step_summary.h"

#include <doctest/doctest.h>

#include <cmath>

namespace step_summary_test {

using namespace lockstep::tools;

namespace {

RankTimes times(int rank, double data, double step, double late) {
  RankTimes times{.rank = rank};
  times.seconds[0] = data;
  times.seconds[static_cast<std::size_t>(StepPart::step)] = step;
  times.seconds[static_cast<std::size_t>(StepPart::late)] = late;
  return times;
}

StepsLine line(std::int64_t step, std::int64_t steps, std::vector<RankTimes> ranks) {
  return {.step = step, .steps = steps, .world_size = 2, .ranks = std::move(ranks), .straggler = 1};
}

RankTimes communication(int rank, double shown, double hidden) {
  RankTimes times{.rank = rank};
  times.seconds[static_cast<std::size_t>(StepPart::communicating)] = shown;
  times.seconds[static_cast<std::size_t>(StepPart::hidden)] = hidden;
  return times;
}

}  // namespace

TEST_CASE("means are weighted by steps, and over the lines that know a part") {
  const auto ranks = summary_of({line(10, 10, {times(0, 1, 2, 0), times(1, 4, 5, 0.5)}),
                                 line(40, 30, {times(0, 5, 2, 0), times(1, kUnknown, 9, 0.25)})});
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].mean.of(StepPart::data) == 4);
  CHECK(ranks[0].steps == 40);
  CHECK(ranks[0].lines_as_straggler == 0);
  CHECK(ranks[1].mean.of(StepPart::data) == 4);
  CHECK(ranks[1].mean.of(StepPart::step) == 8);
  CHECK(ranks[1].mean.of(StepPart::late) == 0.3125);
  CHECK(std::isnan(ranks[1].mean.of(StepPart::forward)));
  CHECK(ranks[1].lines_as_straggler == 2);
  CHECK(ranks[1].most_late == 0.5);
  CHECK(ranks[1].most_late_step == 10);
}

TEST_CASE("the rest of a step is what no part names") {
  RankTimes all = times(0, 1, 6, 3);
  CHECK(other_seconds(all) == 5);
  all.seconds[1] = 7;
  CHECK(other_seconds(all) == 0);
  CHECK(std::isnan(other_seconds(times(0, 1, kUnknown, 0))));
}

TEST_CASE("hidden communication is a share of all of it") {
  const StepsLine one{.step = 1, .ranks = {communication(0, 1, 3), communication(1, 2, 2)}};
  CHECK(hidden_share(one) == 5.0 / 8);
  const StepsLine more{.step = 3, .steps = 2, .ranks = {communication(0, 4, 0)}};
  CHECK(hidden_share(std::vector{one, more}) == 5.0 / 16);
  CHECK(std::isnan(hidden_share(StepsLine{.ranks = {communication(0, 0, 0)}})));
  CHECK(std::isnan(hidden_share(StepsLine{.ranks = {times(0, 1, 2, 3)}})));
}

TEST_CASE("many lines are joined to few, and nothing is lost") {
  std::vector<StepsLine> lines;
  for (int i = 1; i <= 1001; ++i) lines.push_back(line(i * 10, 10, {times(0, 1, i % 2, 0)}));
  const auto few = joined(lines, 60);
  CHECK(few.size() <= 60);
  CHECK(few.back().step == 10010);
  std::int64_t steps = 0;
  for (const StepsLine& each : few) steps += each.steps;
  CHECK(steps == 10010);
  CHECK(summary_of(few)[0].mean.of(StepPart::step) == doctest::Approx(501.0 / 1001));
  CHECK(joined(lines, 2000).size() == 1001);
  CHECK(joined({}, 5).empty());
}

TEST_CASE("the steps of a line") {
  CHECK(steps_text(line(100, 50, {})) == "51 to 100");
  CHECK(steps_text(line(7, 1, {})) == "7");
  CHECK(steps_text(line(7, 50, {})) == "1 to 7");
}

}  // namespace step_summary_test
