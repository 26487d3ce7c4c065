#include "tools/report/charts.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tools/report/axis.h"
#include "tools/report/run_record.h"

namespace charts_test {

using namespace lockstep::tools;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

LineChart chart_of(std::vector<ChartPoint> points) {
  return {.title = "t", .x_label = "epoch", .series = {{.name = "s", .points = std::move(points)}}};
}

}  // namespace

TEST_CASE("an axis has round ticks around its values") {
  const Axis axis = axis_of(0.13, 0.87, 5);
  CHECK(axis.first == doctest::Approx(0));
  CHECK(axis.last() == doctest::Approx(1));
  CHECK(axis.step == doctest::Approx(0.2));
  CHECK(axis.label(1) == "0.2");
  CHECK(axis.place_of(0.5) == doctest::Approx(0.5));
  const Axis epochs = axis_of(1, 3, 8, true);
  CHECK(epochs.first == 1);
  CHECK(epochs.steps == 2);
  CHECK(epochs.label(2) == "3");
  CHECK(axis_of(-0.4, 0.4, 5).label(2) == "0.0");
  CHECK(axis_of(0, 5e-324, 5).last() == 1);  // what cannot be divided is nothing
}

TEST_CASE("an axis of one value, of none, or of extremes is an axis") {
  for (const auto& [low, high] :
       {std::pair(0.0, 0.0), std::pair(5.0, 5.0), std::pair(-3.0, -3.0), std::pair(1e99, 1e100),
        std::pair(-1e100, 1e100), std::pair(1e16, 1e16 + 2), std::pair(1e-300, 2e-300)}) {
    for (const bool whole : {false, true}) {
      const Axis axis = axis_of(low, high, 5, whole);
      CAPTURE(low);
      CAPTURE(high);
      CHECK(axis.step > 0);
      CHECK(axis.steps >= 1);
      CHECK(axis.steps <= 7);
      CHECK(axis.place_of(low) >= -1e-6);
      CHECK(axis.place_of(high) <= 1 + 1e-6);
      for (std::size_t tick = 0; tick <= axis.steps; ++tick) CHECK(axis.label(tick).size() < 16);
    }
  }
}

TEST_CASE("a line goes through its points and has a gap where a number is missing") {
  const std::string html = html_of(chart_of({{1, 0}, {2, 10}, {3, kUnknown}, {4, 5}}));
  CHECK(html.find("d=\"M62.0 212.0L250.0 10.0M626.0 111.0\"") != std::string::npos);
  CHECK(count(html, "<circle") == 3);
  CHECK(html.find("<title>s, epoch 2: 10</title>") != std::string::npos);
  CHECK(html_of(chart_of({})).empty());
  CHECK(html_of(chart_of({{1, kUnknown}})).empty());
}

TEST_CASE("numbers that cannot be drawn leave no trace of themselves") {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string html = html_of(chart_of({{1, infinite}, {2, 1e308}, {3, -infinite}, {4, 1}, {5, -1e308}}));
  CHECK(html.find("inf") == std::string::npos);
  CHECK(html.find("nan") == std::string::npos);
  CHECK(count(html, "<circle") == 1);
}

TEST_CASE("many points are drawn as the means of neighbours") {
  std::vector<ChartPoint> points;
  for (int i = 1; i <= 10'000; ++i) points.push_back({static_cast<double>(i), i % 2 == 0 ? 2.0 : 0.0});
  const std::string html = html_of(chart_of(points));
  CHECK(count(html, "L") < 420);
  CHECK(count(html, "<circle") == 0);
  CHECK(html.size() < 12'000);
}

TEST_CASE("bars are as long as their parts, one behind the other") {
  const std::string html = html_of(BarChart{.title = "t",
                                            .x_label = "ms",
                                            .parts = {"data", "forward", "backward"},
                                            .rows = {{"rank 0", {10, kUnknown, 20}}, {"rank 1", {5, 10, 15}}}});
  CHECK(count(html, "<rect class=\"part") == 5);
  CHECK(html.find("<rect class=\"part p0\" x=\"72.0\"") != std::string::npos);
  CHECK(html.find("<title>rank 0, backward: 20</title>") != std::string::npos);
  const std::size_t second = html.find("<title>rank 0, backward");
  CHECK(html.rfind("x=\"256.7\"", second) != std::string::npos);  // behind 10 of 30, of a width of 554
  CHECK(html_of(BarChart{.parts = {"a"}, .rows = {{"r", {0}}}}).empty());
}

TEST_CASE("a cell is the darker the larger its value") {
  const std::string html = html_of(HeatMap{
      .title = "t", .x_label = "steps", .unit = "ms", .columns = {"1 to 5", "6 to 10"}, .rows = {{"rank 0", {4, 1}}}});
  CHECK(html.find("fill-opacity=\"1.000\"><title>rank 0, 1 to 5: 4 ms</title>") != std::string::npos);
  CHECK(html.find("fill-opacity=\"0.250\"") != std::string::npos);
  CHECK(html_of(HeatMap{.columns = {"1"}, .rows = {{"rank 0", {0}}}}).empty());
}

TEST_CASE("texts of charts are escaped") {
  LineChart chart = chart_of({{1, 1}});
  chart.title = chart.x_label = chart.series[0].name = "<script>\"";
  const std::string html = html_of(chart);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("aria-label=\"&lt;script&gt;&quot;\"") != std::string::npos);
}

}  // namespace charts_test
