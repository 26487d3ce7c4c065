#include "lockstep/base/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace lockstep::internal {
namespace {

// How many letters have to be changed, added or left out to make one of the other (Levenshtein).
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> names, std::size_t most) {
  const auto nearest =
      std::ranges::min_element(names, {}, [&](std::string_view known) { return distance(name, known); });
  if (nearest == names.end() || distance(name, *nearest) > most) return std::nullopt;
  return *nearest;
}

}  // namespace lockstep::internal
