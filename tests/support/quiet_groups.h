// Process groups whose ranks are threads of this process, and which send nothing but their collectives: no rank asks
// another one how it fares, which it would do whenever the machine has kept it waiting for a tenth of a second.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/local_groups.h"

namespace lockstep::testing {

using namespace internal;

inline void run_quiet_group(int ranks, Over transport, const std::function<void(const ProcessGroup&)>& body) {
  std::vector<ProcessGroup> groups;
  if (transport == Over::arena) {
    for (auto& arena : make_local_arenas(ranks, {.segment_bytes = std::size_t{256} << 20})) {
      groups.emplace_back(std::make_unique<ArenaEngine>(std::move(arena)));
    }
  } else {
    for (auto& mesh : make_arena_meshes(ranks)) groups.emplace_back(std::make_unique<LinkEngine>(std::move(mesh), 0));
  }
  run_ranks_or_throw(ranks, [&](int rank) { body(groups[static_cast<std::size_t>(rank)]); });
}

}  // namespace lockstep::testing
