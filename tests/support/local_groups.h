// Process groups whose ranks are threads of this process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/collective/link_engine.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/transport/arena_mesh.h"
#include "tests/support/arena_meshes.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

using namespace internal;

enum class Over { arena, links };
inline constexpr Over kTransports[] = {Over::arena, Over::links};

inline std::vector<ProcessGroup> local_groups(int ranks, Over transport = Over::arena,
                                              const GroupOptions& options = {}) {
  std::vector<ProcessGroup> groups;
  if (transport == Over::arena) {
    for (auto& arena : make_local_arenas(ranks, {.segment_bytes = std::size_t{256} << 20})) {
      auto messages = make_arena_mesh(*arena);
      groups.emplace_back(std::make_unique<ArenaEngine>(std::move(arena)), options, std::move(messages));
    }
  } else {
    auto messages = make_arena_meshes(ranks);
    for (auto& mesh : make_arena_meshes(ranks)) {
      groups.emplace_back(std::make_unique<LinkEngine>(std::move(mesh), 0), options,
                          std::move(messages[groups.size()]));
    }
  }
  return groups;
}

// Runs `body` as n ranks of one group. A rank that throws takes the others with it, as a dying process would.
inline std::vector<std::exception_ptr> run_group(int ranks, Over transport,
                                                 const std::function<void(const ProcessGroup&)>& body,
                                                 const GroupOptions& options = {.timeout = std::chrono::seconds(30)}) {
  const auto groups = local_groups(ranks, transport, options);
  return run_ranks(ranks, [&](int rank) {
    const ProcessGroup& group = groups[static_cast<std::size_t>(rank)];
    try {
      body(group);
    } catch (...) {
      group.abort("another rank failed");
      throw;
    }
  });
}

inline void run_group_or_throw(int ranks, Over transport, const std::function<void(const ProcessGroup&)>& body) {
  for (const auto& error : run_group(ranks, transport, body)) {
    if (error) std::rethrow_exception(error);
  }
}

// Over each transport.
inline void as_group(int ranks, const std::function<void(const ProcessGroup&)>& body) {
  for (const Over transport : kTransports) run_group_or_throw(ranks, transport, body);
}

}  // namespace lockstep::testing
