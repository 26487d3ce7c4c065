#include "lockstep/group/connect.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/arena_engine.h"
#include "lockstep/transport/shared_arena.h"

namespace lockstep {
namespace {

[[maybe_unused]] bool on_one_node(const Membership& membership) {
  return std::all_of(membership.members.begin(), membership.members.end(),
                     [&](const Member& member) { return member.node_id == membership.members.front().node_id; });
}

std::unique_ptr<Engine> over_shared_memory(const Membership& membership, const std::string& name, Deadline deadline) {
  SharedArenaSpec spec;
  spec.name = name;
  spec.rank = membership.rank;
  spec.options.generation = membership.generation;
  for (const Member& member : membership.members) spec.members.push_back({to_string(member), member.pid});
  return std::make_unique<ArenaEngine>(make_shared_arena(spec, *membership.store, deadline));
}

}  // namespace

ProcessGroup connect_group(const Membership& membership, const std::string& name, const GroupOptions& options, Deadline deadline) {
  if (membership.size == 1) {
    return ProcessGroup(std::make_unique<ArenaEngine>(std::move(make_local_arenas(1).front())), options);
  }
  return ProcessGroup(over_shared_memory(membership, name, deadline), options);
}

}  // namespace lockstep
