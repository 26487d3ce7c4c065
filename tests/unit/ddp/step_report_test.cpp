#include "lockstep/train/ddp/timing/step_report.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"

namespace step_report_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;

// Of a rank that needs so long for its data and for everything else, in steps of the slowest one.
StepWindow window_of(double data, double slowest_data, std::size_t steps = 20) {
  constexpr double kForward = 0.02, kBackward = 0.03, kTransfer = 0.001;
  const double wait = slowest_data - data;
  const auto count = static_cast<double>(steps);
  StepWindow window;
  window.times = {.steps = static_cast<std::int64_t>(steps),
                  .data = data * count,
                  .forward = kForward * count,
                  .backward = kBackward * count,
                  .waiting = wait * count,
                  .communicating = kTransfer * count};
  window.waits.assign(steps, static_cast<float>(wait));
  return window;
}

std::vector<StepWindow> ranks_with_data(const std::vector<double>& data) {
  double slowest = 0;
  for (const double each : data) slowest = std::max(slowest, each);
  std::vector<StepWindow> windows;
  for (const double each : data) windows.push_back(window_of(each, slowest));
  return windows;
}

}  // namespace

TEST_CASE("a rank that is 200 ms late is told with 200 ms, and with the part that takes it longer") {
  const StepReport report = report_on(ranks_with_data({0.01, 0.01, 0.21, 0.01}));
  CHECK(report.steps == 20);
  REQUIRE(report.ranks.size() == 4);
  CHECK(report.ranks[2].late.mean == doctest::Approx(0.2));
  CHECK(report.ranks[2].late.typical == doctest::Approx(0.2));
  CHECK(report.ranks[2].late.share == doctest::Approx(1));
  for (const int other : {0, 1, 3}) CHECK(report.ranks[static_cast<std::size_t>(other)].late.mean == 0);
  REQUIRE(report.straggler);
  CHECK(report.straggler->rank == 2);
  CHECK(report.straggler->part == "data");
  CHECK(report.straggler->part_own == doctest::Approx(0.21));
  CHECK(report.straggler->part_others == doctest::Approx(0.01));
  const auto told = change_of_straggler(report, {}, {"a", "a", "b", "b"});
  REQUIRE(told);
  CHECK(*told ==
        "rank 2 (host b) delays the others: it was last in 100 % of the last 20 steps, on average 200.00 ms later "
        "than the others, in steps of 261.00 ms; it spends 210.00 ms a step on data, the others 10.00 ms");
}

TEST_CASE("it is told once, and again when it is another rank or none") {
  const StepReport late = report_on(ranks_with_data({0.01, 0.11})), even = report_on(ranks_with_data({0.01, 0.01}));
  CHECK(change_of_straggler(late, {}, {}));
  CHECK_FALSE(change_of_straggler(late, 1, {}));
  CHECK(change_of_straggler(late, 0, {}));
  CHECK_FALSE(change_of_straggler(even, {}, {}));
  CHECK(change_of_straggler(even, 1, {}) == "rank 1 is no longer a straggler");
}

TEST_CASE("small differences and ranks that take turns are no stragglers") {
  CHECK_FALSE(report_on(ranks_with_data({0.010, 0.012})).straggler);  // 2 ms of 63
  std::vector<StepWindow> turns = ranks_with_data({0.01, 0.01, 0.01});
  for (std::size_t step = 0; step < 20; ++step) {
    for (std::size_t rank = 0; rank < 3; ++rank) turns[rank].waits[step] = step % 3 == rank ? 0 : 0.1F;
  }
  const StepReport report = report_on(turns);
  CHECK_FALSE(report.straggler);
  CHECK(report.ranks[0].late.mean == doctest::Approx(0.1 * 7 / 20));
  CHECK(report.ranks[2].late.share == doctest::Approx(6.0 / 20));
}

TEST_CASE("of short steps even a large part is noise") {
  std::vector<StepWindow> windows = ranks_with_data({0.001, 0.005});  // 4 ms
  for (StepWindow& window : windows) window.times.forward = window.times.backward = 0;
  CHECK_FALSE(report_on(windows).straggler);
  CHECK(report_on(windows, 1).straggler);  // it was one, of longer steps
  windows = ranks_with_data({0.001, 0.007});
  for (StepWindow& window : windows) window.times.forward = window.times.backward = 0;
  CHECK(report_on(windows).straggler);
}

TEST_CASE("one slow step makes no straggler") {
  std::vector<StepWindow> windows = ranks_with_data({0.01, 0.01});
  windows[0].waits[3] = 30;
  const StepReport report = report_on(windows);
  CHECK(report.ranks[1].late.mean == doctest::Approx(1.5));
  CHECK(report.ranks[1].late.typical == 0);
  CHECK_FALSE(report.straggler);
}

TEST_CASE("a rank that is late without working longer is no straggler") {
  std::vector<StepWindow> windows = ranks_with_data({0.01, 0.11});
  REQUIRE(report_on(windows).straggler);
  windows[1].times.data = windows[0].times.data;  // it was not there, but nobody saw it work
  const StepReport report = report_on(windows);
  CHECK_FALSE(report.straggler);
  CHECK(report.ranks[1].late.mean == doctest::Approx(0.1));
}

TEST_CASE("a rank that comes last in little more than half of the steps is no straggler yet") {
  std::vector<StepWindow> windows = ranks_with_data({0.01, 0.11});
  for (std::size_t step = 0; step < 9; ++step) std::swap(windows[0].waits[step], windows[1].waits[step]);
  CHECK(report_on(windows).ranks[1].late.share == doctest::Approx(0.55));
  CHECK_FALSE(report_on(windows).straggler);
  CHECK(report_on(windows, 1).straggler);
}

TEST_CASE("a straggler stays one until it is half as late") {
  const std::vector<StepWindow> windows = ranks_with_data({0.010, 0.014});  // 4 ms of 65
  CHECK_FALSE(report_on(windows).straggler);
  CHECK(report_on(windows, 1).straggler);
  CHECK_FALSE(report_on(windows, 0).straggler);
}

TEST_CASE("one rank, and ranks that have measured nothing") {
  CHECK_FALSE(report_on({window_of(0.01, 0.01)}).straggler);
  const StepReport nothing = report_on({StepWindow(), StepWindow()});
  CHECK(nothing.steps == 0);
  CHECK_FALSE(nothing.straggler);
  CHECK(steps_until_next(nothing) == kStepsUntilFirst);
}

TEST_CASE("reports come every 5 s or so") {
  CHECK(steps_until_next(report_on({window_of(0.049, 0.049)})) == 50);  // of 100 ms
  CHECK(steps_until_next(report_on({window_of(100, 100)})) == 10);
  StepWindow fast;
  fast.times = {.steps = 1000, .compute = 0.001};
  CHECK(steps_until_next(report_on({fast})) == 1 << 14);
}

TEST_CASE("windows come through as they were, as many waits as there is room for") {
  StepWindow window = window_of(0.01, 0.21);
  window.times.optimizer = 1;
  window.times.compute = 2;
  window.times.hidden = 3;
  for (std::size_t step = 0; step < window.waits.size(); ++step) window.waits[step] = static_cast<float>(step);
  for (const std::size_t room : {20, 30, 5}) {
    std::vector<std::uint8_t> bytes(2 * window_bytes(room));
    encode_window(window, std::span(bytes).first(window_bytes(room)));
    encode_window(StepWindow(), std::span(bytes).subspan(window_bytes(room)));
    const auto windows = decode_windows(bytes, 2);
    REQUIRE(windows.size() == 2);
    CHECK(windows[0].times.total() == window.times.total());
    CHECK(windows[0].times.hidden == 3);
    CHECK(windows[0].times.steps == 20);
    CHECK(windows[0].waits.size() == std::min<std::size_t>(room, 20));
    CHECK(windows[0].waits.back() == 19);
    CHECK(windows[1].waits.empty());
  }
}

TEST_CASE("numbers that cannot be are refused, and the rank is named") {
  std::vector<std::uint8_t> bytes(2 * window_bytes(3));
  const auto second = std::span(bytes).subspan(window_bytes(3));
  StepWindow window;
  window.times.waiting = std::numeric_limits<double>::quiet_NaN();
  encode_window(window, second);
  CHECK_ERROR(error_of([&] { decode_windows(bytes, 2); }), ErrorKind::corrupt_data, "rank 1's step times", "nan");
  window.times.waiting = 0;
  window.waits = {1, -1};
  encode_window(window, second);
  CHECK_ERROR(error_of([&] { decode_windows(bytes, 2); }), ErrorKind::corrupt_data, "rank 1's step times", "-1");
  window.waits.assign(4, 1.0F);
  std::vector<std::uint8_t> longer(window_bytes(4));
  encode_window(window, longer);
  std::copy(longer.begin(), longer.begin() + static_cast<std::ptrdiff_t>(second.size()), second.begin());
  CHECK_ERROR(error_of([&] { decode_windows(bytes, 2); }), ErrorKind::corrupt_data, "waits is 4", "0 to 3");
  CHECK_ERROR(error_of([&] { decode_windows(std::span(bytes).first(10), 2); }), ErrorKind::corrupt_data, "length");
}

}  // namespace step_report_test
