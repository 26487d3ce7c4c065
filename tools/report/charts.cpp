#include "tools/report/charts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/format.h"
#include "tools/report/axis.h"
#include "tools/report/html.h"
#include "tools/report/run_record.h"

namespace lockstep::tools {
namespace {

// Of the drawing, in its own units; the page scales it.
constexpr double kWidth = 640, kHeight = 250, kLeft = 62, kRight = 14, kTop = 10, kBottom = 38;
constexpr double kRowHeight = 20, kRowGap = 6, kNames = 72;
constexpr std::size_t kMostPoints = 400, kMostDots = 40, kMostTitles = 700;
constexpr double kLargest = 1e100;

bool can_be_drawn(double value) { return std::isfinite(value) && std::abs(value) <= kLargest; }

// A range that grows with the values put into it.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  bool is_empty() const { return low > high; }
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  const std::size_t each = (points.size() + kMostPoints - 1) / kMostPoints;
  if (each <= 1) return points;
  std::vector<ChartPoint> fewer;
  for (std::size_t begin = 0; begin < points.size(); begin += each) {
    const std::size_t end = std::min(begin + each, points.size());
    double sum = 0, count = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!can_be_drawn(points[i].y)) continue;
      sum += points[i].y;
      ++count;
    }
    fewer.push_back({points[end - 1].x, count == 0 ? kUnknown : sum / count});
  }
  return fewer;
}

std::string svg_begin(double height, const std::string& title) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height,
                     escaped(title));
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

// Below the drawing. A narrow page leaves out every other one.
std::string tick_label(double x, double y, const std::string& text, std::size_t tick) {
  return fmt::format("<text{} x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     tick % 2 == 1 ? " class=\"odd\"" : "", x, y, escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

std::string figure(const std::string& title, const std::string& svg, const std::string& legend) {
  return fmt::format("<figure><figcaption>{}</figcaption>\n{}</svg>\n{}</figure>\n", escaped(title), svg, legend);
}

std::string stroke_classes(const ChartSeries& series) {
  return fmt::format("c{} d{}", series.color % kChartColors, series.dash % kChartDashes);
}

// Horizontal grid lines with numbers, and numbers below.
std::string grid_of(const Axis& x, const Axis& y, const std::string& x_label) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  std::string svg;
  for (std::size_t tick = 0; tick <= y.steps; ++tick) {
    const double at = bottom - (bottom - kTop) * static_cast<double>(tick) / static_cast<double>(y.steps);
    svg += line_at(kLeft, at, right, at) + text_at(kLeft - 6, at + 4, "end", y.label(tick));
  }
  for (std::size_t tick = 0; tick <= x.steps; ++tick) {
    const double at = kLeft + (right - kLeft) * static_cast<double>(tick) / static_cast<double>(x.steps);
    svg += tick_label(at, bottom + 16, x.label(tick), tick);
  }
  return svg + text_at((kLeft + right) / 2, kHeight - 6, "middle", x_label);
}

std::string drawn(const ChartSeries& series, const Axis& x, const Axis& y, const std::string& x_label) {
  const std::vector<ChartPoint> points = thinned(series.points);
  std::string path, dots;
  bool is_gap = true;
  for (const ChartPoint& point : points) {
    if (!can_be_drawn(point.y)) {
      is_gap = true;
      continue;
    }
    const double at_x = kLeft + (kWidth - kRight - kLeft) * x.place_of(point.x);
    const double at_y = kHeight - kBottom - (kHeight - kBottom - kTop) * y.place_of(point.y);
    path += fmt::format("{}{:.1f} {:.1f}", is_gap ? "M" : "L", at_x, at_y);
    is_gap = false;
    if (points.size() > kMostDots) continue;
    dots += fmt::format(
        "<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"><title>{}, {} {}: {}</title></circle>\n",
        series.color % kChartColors, at_x, at_y, escaped(series.name), escaped(x_label), number_text(point.x),
        number_text(point.y));
  }
  return fmt::format("<path class=\"line {}\" d=\"{}\"/>\n{}", stroke_classes(series), path, dots);
}

std::string legend_of(const std::vector<ChartSeries>& series) {
  std::string html = "<ul class=\"legend\">";
  for (const ChartSeries& each : series) {
    html += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><path class=\"line {}\" "
        "d=\"M0 4L26 4\"/></svg>{}</li>\n",
        stroke_classes(each), escaped(each.name));
  }
  return html + "</ul>\n";
}

std::string part_class(const BarChart& chart, std::size_t part) {
  return fmt::format("p{}", part < chart.colors.size() ? chart.colors[part] : part);
}

std::string legend_of(const BarChart& chart) {
  std::string html = "<ul class=\"legend\">";
  for (std::size_t part = 0; part < chart.parts.size(); ++part) {
    html += fmt::format(
        "<li><svg class=\"key\" viewBox=\"0 0 26 8\" aria-hidden=\"true\"><rect class=\"{}\" "
        "width=\"26\" height=\"8\"/></svg>{}</li>\n",
        part_class(chart, part), escaped(chart.parts[part]));
  }
  return html + "</ul>\n";
}

double row_top(std::size_t row) { return kTop + static_cast<double>(row) * (kRowHeight + kRowGap); }

}  // namespace

std::string html_of(const LineChart& chart) {
  Range xs, ys;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!can_be_drawn(point.y)) continue;
      xs.add(point.x);
      ys.add(point.y);
    }
  }
  if (xs.is_empty()) return "";
  if (chart.from_zero) ys.add(0);
  const Axis x = axis_of(xs.low, xs.high, 8, true), y = axis_of(ys.low, ys.high, 5);
  std::string svg = svg_begin(kHeight, chart.title) + grid_of(x, y, chart.x_label);
  for (const ChartSeries& series : chart.series) svg += drawn(series, x, y, chart.x_label);
  return figure(chart.title, svg, legend_of(chart.series));
}

std::string html_of(const BarChart& chart) {
  Range range;
  range.add(0);
  for (const ChartRow& row : chart.rows) {
    double sum = 0;
    for (const double value : row.values) sum += can_be_drawn(value) ? std::max(value, 0.0) : 0;
    range.add(sum);
  }
  if (chart.rows.empty() || range.high <= 0) return "";
  const Axis axis = axis_of(0, range.high, 6);
  const double right = kWidth - kRight, bottom = row_top(chart.rows.size()), height = bottom + kBottom;
  std::string svg = svg_begin(height, chart.title);
  for (std::size_t tick = 0; tick <= axis.steps; ++tick) {
    const double at = kNames + (right - kNames) * static_cast<double>(tick) / static_cast<double>(axis.steps);
    svg += line_at(at, kTop, at, bottom) + tick_label(at, bottom + 16, axis.label(tick), tick);
  }
  svg += text_at((kNames + right) / 2, height - 6, "middle", chart.x_label);
  for (std::size_t row = 0; row < chart.rows.size(); ++row) {
    svg += text_at(kNames - 6, row_top(row) + 14, "end", chart.rows[row].name);
    double begin = kNames;
    for (std::size_t part = 0; part < chart.rows[row].values.size(); ++part) {
      const double value = chart.rows[row].values[part];
      if (!can_be_drawn(value) || value <= 0) continue;
      const double width = (right - kNames) * axis.place_of(value);
      svg += fmt::format(
          "<rect class=\"part {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\">"
          "<title>{}, {}: {}</title></rect>\n",
          part_class(chart, part), begin, row_top(row), width, kRowHeight, escaped(chart.rows[row].name),
          escaped(chart.parts[part]), number_text(value));
      begin += width;
    }
  }
  return figure(chart.title, svg, legend_of(chart));
}

std::string html_of(const HeatMap& map) {
  double most = 0;
  for (const ChartRow& row : map.rows) {
    for (const double value : row.values) most = std::max(most, can_be_drawn(value) ? value : 0);
  }
  if (map.rows.empty() || map.columns.empty() || most <= 0) return "";
  const double right = kWidth - kRight, width = (right - kNames) / static_cast<double>(map.columns.size());
  const double bottom = row_top(map.rows.size()), height = bottom + kBottom;
  const bool has_titles = map.rows.size() * map.columns.size() <= kMostTitles;
  std::string svg = svg_begin(height, map.title);
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    svg += text_at(kNames - 6, row_top(row) + 14, "end", map.rows[row].name);
    svg += fmt::format("<rect class=\"ground\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n",
                       kNames, row_top(row), right - kNames, kRowHeight);
    for (std::size_t column = 0; column < map.rows[row].values.size(); ++column) {
      const double value = map.rows[row].values[column];
      if (!can_be_drawn(value) || value <= 0) continue;
      const std::string title = fmt::format("<title>{}, {}: {} {}</title>", escaped(map.rows[row].name),
                                            escaped(map.columns[column]), number_text(value), escaped(map.unit));
      svg += fmt::format(
          "<rect class=\"heat\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
          "fill-opacity=\"{:.3f}\">{}</rect>\n",
          kNames + width * static_cast<double>(column), row_top(row), width, kRowHeight, value / most,
          has_titles ? title : "");
    }
  }
  svg += text_at(kNames, bottom + 16, "start", map.columns.front());
  svg += text_at(right, bottom + 16, "end", map.columns.back());
  svg += text_at((kNames + right) / 2, height - 6, "middle", map.x_label);
  return figure(
      map.title, svg,
      fmt::format("<p class=\"scale\">The darkest cell is {} {}.</p>\n", number_text(most), escaped(map.unit)));
}

}  // namespace lockstep::tools
