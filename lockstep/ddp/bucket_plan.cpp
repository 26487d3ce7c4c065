#include "lockstep/ddp/bucket_plan.h"

#include <map>

namespace lockstep {

std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<PlannedParameter>& parameters,
                                                   std::size_t first_bytes, std::size_t cap_bytes) {
  struct Open {
    std::size_t bucket;
    std::size_t bytes;
  };
  std::vector<std::vector<std::size_t>> buckets;
  std::map<DType, Open> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const PlannedParameter& parameter = parameters[i];
    auto found = open.find(parameter.dtype);
    if (found == open.end()) {
      found = open.emplace(parameter.dtype, Open{buckets.size(), 0}).first;
      buckets.emplace_back();
    }
    Open& current = found->second;
    buckets[current.bucket].push_back(i);
    current.bytes += parameter.bytes;
    const std::size_t cap = current.bucket == 0 ? first_bytes : cap_bytes;
    if (current.bytes >= cap) open.erase(found);
  }
  return buckets;
}

}  // namespace lockstep
