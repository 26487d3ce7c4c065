#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/comm/collective/arena_engine.h"
#include "lockstep/comm/group/transports.h"
#include "lockstep/comm/transport/arena_mesh.h"

namespace lockstep::internal {
namespace {

std::string obstacle_to_arena(const Membership& membership) {
  if (on_one_node(membership)) return "";
  return "the ranks share no memory: they are on different hosts, or have different namespaces";
}

std::unique_ptr<Arena> arena_of_one(const std::shared_ptr<const ArenaHeaps>& heaps) {
  if (heaps == nullptr) return std::move(make_local_arenas(1).front());
  return std::move(make_local_arenas(1, {.segment_bytes = kStagingAreaBytes}, {heaps}).front());
}

Connected connect_by_arena(const RanksToConnect& ranks) {
  const std::shared_ptr<const ArenaHeaps>& heaps = ranks.known.heaps;
  std::unique_ptr<Arena> arena =
      ranks.membership.size == 1 ? arena_of_one(heaps)
                                 : arena_if_any(ranks.membership, ranks.name, ranks.options, 0, heaps, ranks.deadline);
  if (arena == nullptr) return {};
  ranks.own.heaps = arena->heaps();
  auto messages = make_arena_mesh(*arena);
  const std::string about = fmt::format("{} MiB of address space a rank{}", arena->heaps()->segment_bytes() >> 20,
                                        heaps == nullptr ? "" : ", shared with the group that it was split from");
  return {std::make_unique<ArenaEngine>(std::move(arena)), std::move(messages), about};
}

}  // namespace

TransportEntry shared_memory_transport() {
  return {.name = std::string(kSharedMemoryTransport),
          .description = "memory that all ranks of one node map",
          .obstacle = obstacle_to_arena,
          .connect = connect_by_arena};
}

}  // namespace lockstep::internal
