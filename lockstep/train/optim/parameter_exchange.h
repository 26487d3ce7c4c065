// Gives all ranks the parameters that each of them has updated. parts -> process group -> parameters.
// Collective and blocking; fails as ProcessGroup's calls do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace lockstep::internal {

// parts[r]: sent by rank r and received by all others, in place; lists, types, sizes and strides are the same on all
// ranks. The values are moved as they are, so all ranks end up with the same bits.
// name: of the collectives, which ranks compare.
void exchange_parameters(const ProcessGroup& group, const std::vector<std::vector<at::Tensor>>& parts,
                         std::string_view name);

// How: where parts are of similar size, all ranks send theirs at once, padded to the size of the largest one; else they
// take turns, one broadcast each.
bool exchange_at_once(const std::vector<std::int64_t>& part_bytes);

}  // namespace lockstep::internal
