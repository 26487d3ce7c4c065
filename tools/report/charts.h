// Charts as SVG in an HTML figure: values -> text. Colours and strokes are classes of the page's style, so that they
// follow light and dark; there are no style attributes, which the page's policy forbids. Texts are escaped here. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::tools {

inline constexpr std::size_t kChartColors = 8;
inline constexpr std::size_t kChartDashes = 4;

struct ChartPoint {
  double x = 0, y = 0;  // a y that is not finite, or beyond 1e100, is a gap
};

struct ChartSeries {
  std::string name = {};
  std::size_t color = 0, dash = 0;  // any number; they repeat
  std::vector<ChartPoint> points = {};
};

struct LineChart {
  std::string title = {}, x_label = {};
  std::vector<ChartSeries> series = {};
  bool from_zero = false;
};
// Nothing if there is no point. More than 400 points of a series are drawn as means of neighbours.
std::string html_of(const LineChart& chart);

struct ChartRow {
  std::string name = {};
  std::vector<double> values = {};
};

// A horizontal bar for each row, whose parts follow each other.
struct BarChart {
  std::string title = {}, x_label = {};
  std::vector<std::string> parts = {};
  std::vector<std::size_t> colors = {};  // of the parts: p0 to p7 of the page's style
  std::vector<ChartRow> rows = {};       // of a value for each part; what is not known is left out
};
std::string html_of(const BarChart& chart);

// Cells whose colour is the darker the larger their value.
struct HeatMap {
  std::string title = {}, x_label = {}, unit = {};
  std::vector<std::string> columns = {};
  std::vector<ChartRow> rows = {};  // of a value for each column
};
std::string html_of(const HeatMap& map);

}  // namespace lockstep::tools
