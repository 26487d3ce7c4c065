#include "tools/report/axis.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/format.h"

namespace lockstep::tools {

std::string Axis::label(std::size_t number) const {
  double value = tick(number);
  if (std::abs(value) < step / 2) value = 0;  // no "-0.0"
  const double size = std::max(std::abs(first), std::abs(last()));
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  if (size >= 1e6 || decimals > 6) return fmt::format("{:.4g}", value);
  return fmt::format("{:.{}f}", value, decimals);
}

Axis axis_of(double low, double high, std::size_t most_steps, bool whole) {
  const double size = std::max(std::abs(low), std::abs(high));
  constexpr double kNothing = 1e-300;                  // smaller numbers have too few digits to be divided
  if (high - low <= size * 1e-9 || size < kNothing) {  // one value: there is room on both sides of it
    const double room = whole || size < kNothing ? 1 : size * 0.1;
    low -= room;
    high += room;
  }
  const double least = (high - low) / static_cast<double>(std::max<std::size_t>(most_steps, 1));
  double power = std::pow(10, std::floor(std::log10(least)));
  if (whole) power = std::max(power, 1.0);
  double step = power;
  for (const double times : {1.0, 2.0, 5.0, 10.0}) {
    step = times * power;
    if (step >= least) break;
  }
  Axis axis{.first = std::floor(low / step) * step, .step = step};
  const double steps = std::ceil((high - axis.first) / step - 1e-9);
  axis.steps = static_cast<std::size_t>(std::clamp(steps, 1.0, static_cast<double>(most_steps) + 2));
  return axis;
}

}  // namespace lockstep::tools
