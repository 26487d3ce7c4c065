#include "lockstep/train/ddp/buckets/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace lockstep::internal {
namespace {

constexpr std::size_t kNoCap = std::numeric_limits<std::size_t>::max();

using Buckets = std::vector<std::vector<std::size_t>>;

void append_buckets(std::span<const PlannedParameter> parameters, std::span<const std::size_t> order,
                    std::span<const std::size_t> caps, bool delayed, Buckets& buckets) {
  struct Open {
    std::size_t bucket;
    std::size_t bytes;
  };
  std::map<std::pair<DType, int>, Open> open;
  for (const std::size_t i : order) {
    const PlannedParameter& parameter = parameters[i];
    if (parameter.delayed != delayed) continue;
    if (parameter.sparse) {
      buckets.push_back({i});
      continue;
    }
    const auto key = std::pair(parameter.dtype, parameter.device);
    auto found = open.find(key);
    if (found == open.end()) {
      found = open.emplace(key, Open{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    Open& current = found->second;
    buckets[current.bucket].push_back(i);
    current.bytes += parameter.bytes;
    const std::size_t cap = delayed ? kNoCap : caps[std::min(current.bucket, caps.size() - 1)];
    if (current.bytes >= cap) open.erase(found);
  }
}

}  // namespace

Buckets plan_buckets(std::span<const PlannedParameter> parameters, std::span<const std::size_t> order,
                     std::span<const std::size_t> caps) {
  Buckets buckets;
  append_buckets(parameters, order, caps, false, buckets);
  append_buckets(parameters, order, caps, true, buckets);
  return buckets;
}

std::vector<std::size_t> reversed_order(std::size_t parameters) {
  std::vector<std::size_t> order(parameters);
  for (std::size_t i = 0; i < parameters; ++i) order[i] = parameters - 1 - i;
  return order;
}

}  // namespace lockstep::internal
