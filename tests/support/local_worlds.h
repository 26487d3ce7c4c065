// Worlds whose ranks are threads of this process, and meet in a store of its memory.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/group/world.h"
#include "lockstep/comm/store/memory_store.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

// What rank r threw at position r.
inline std::vector<std::exception_ptr> run_worlds(int ranks, const std::function<void(const World&)>& body,
                                                  InitOptions options = {.timeout = std::chrono::seconds(30)}) {
  options.store = std::make_shared<MemoryStore>();
  options.world_size = ranks;
  return run_ranks(ranks, [&](int rank) {
    InitOptions mine = options;
    mine.rank = rank;
    const World world = init_process_group(mine);
    body(world);
    world.barrier();
  });
}

inline void run_worlds_or_throw(int ranks, const std::function<void(const World&)>& body,
                                const InitOptions& options = {.timeout = std::chrono::seconds(30)}) {
  for (const auto& error : run_worlds(ranks, body, options)) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep::testing
