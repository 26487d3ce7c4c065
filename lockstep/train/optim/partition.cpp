#include "lockstep/train/optim/partition.h"

#include <algorithm>
#include <numeric>

namespace lockstep::internal {

std::vector<Part> partition_parameters(const std::vector<std::vector<std::int64_t>>& elements, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<Part> parts(n, Part(elements.size()));
  std::vector<std::int64_t> load(n);  // over all groups
  for (std::size_t group = 0; group < elements.size(); ++group) {
    const auto& sizes = elements[group];
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
    for (const std::size_t index : order) {
      const auto rank = static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      parts[rank][group].push_back(index);
      load[rank] += sizes[index];
    }
  }
  return parts;
}

}  // namespace lockstep::internal
