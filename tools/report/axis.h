// An axis of a chart: numbers -> round ticks and their labels. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::tools {

struct Axis {
  double first = 0, step = 1;
  std::size_t steps = 1;  // ticks are one more

  double last() const { return first + step * static_cast<double>(steps); }
  double tick(std::size_t number) const { return first + step * static_cast<double>(number); }
  // Where a value lies: 0 at the first tick, 1 at the last one.
  double place_of(double value) const { return (value - first) / (step * static_cast<double>(steps)); }
  std::string label(std::size_t number) const;
};

// From tick to tick in steps of 1, 2 or 5 times a power of ten, with room for both values, and at most `most_steps` + 2
// steps. `whole`: of whole numbers. REQUIRES: low <= high, and neither is beyond 1e100 in size.
Axis axis_of(double low, double high, std::size_t most_steps, bool whole = false);

}  // namespace lockstep::tools
