#include "lockstep/group/parts.h"

#include <algorithm>
#include <utility>

#include "lockstep/adapters/backends.h"
#include "lockstep/base/format.h"
#include "lockstep/base/hash.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/store_server.h"

namespace lockstep {
namespace {

constexpr Duration kFarewell = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<PeerWatch> watch_parts(const GroupOrigin& origin, const ProcessGroup& group,
                                       const GroupOptions& options, int number, Deadline deadline) {
  const bool is_native = choose_backend(options.backend) == kNativeBackend;
  const bool by_memory = is_native && options.transport != Transport::tcp;
  if (origin.membership.size == 1 || (by_memory && on_one_node(origin.membership))) return nullptr;
  const GroupConnections& known = origin.connections;
  const bool can_share_all = can_share(known.collectives.get(), known.transport, origin.membership, options);
  if (is_native && can_share_all && (!by_memory || are_apart(origin.membership))) return nullptr;
  const std::string prefix = fmt::format("parts/{:016x}/{}", hash_of(origin.name), number);
  const Member& me = origin.membership.members[static_cast<std::size_t>(group.rank())];
  auto watch = std::make_shared<PeerWatch>(std::make_shared<PrefixStore>(origin.membership.store, prefix),
                                           process_of(me), origin.membership.size, "the group was being split");
  try {
    watch->begin(deadline);
  } catch (const Error& error) {
    group.abort(error.what());
    throw;
  }
  return watch;
}

std::string name_of_part(const std::vector<int>& ranks, int size) {
  std::string text = "new_group of";
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int each : ranks) {
    if (each < 0 || each >= size) {
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("new_group: {} is not a rank of this group of {}", each, size));
    }
    if (seen[static_cast<std::size_t>(each)]) {
      throw Error(ErrorKind::invalid_argument, fmt::format("new_group: {} is named twice", each));
    }
    seen[static_cast<std::size_t>(each)] = true;
    text += fmt::format(" {}", each);
  }
  return text;
}

std::vector<int> ranks_of_part(std::span<const std::int64_t> colors_and_keys, std::int64_t color) {
  std::vector<std::pair<std::int64_t, int>> members;  // key and rank
  for (std::size_t at = 0; at < colors_and_keys.size(); at += 2) {
    if (colors_and_keys[at] == color) members.emplace_back(colors_and_keys[at + 1], static_cast<int>(at / 2));
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (const auto& [unused, rank] : members) ranks.push_back(rank);
  return ranks;
}

Error abandon_parts(const GroupOrigin& origin, PeerWatch* watch, const Error& error) {
  if (watch == nullptr) return error;
  // All ranks of the group hear of a desync, and may go on.
  Error cause = error.kind() == ErrorKind::desync ? error : watch->cause_of(error);
  watch->end(Deadline::after(kFarewell));
  // The others still have to read it, in a store that may end with this rank.
  if (const auto host = origin.hosted.lock()) host->wait_for_wills(Deadline::after(kFarewell));
  return cause;
}

ProcessGroup connect_part(const GroupOrigin& origin, int rank, const std::vector<int>& ranks, const std::string& name,
                          const GroupOptions& options, const std::shared_ptr<PeerWatch>& watch, Deadline deadline) {
  Membership part = origin.membership;
  part.watch = watch;
  part.hosted = origin.hosted.lock();
  part.size = static_cast<int>(ranks.size());
  part.members.clear();
  GroupConnections known = origin.connections;
  known.ranks.clear();
  if (watch != nullptr) watch->set_ranks(ranks);
  for (const int each : ranks) {
    const Member& member = origin.membership.members[static_cast<std::size_t>(each)];
    if (watch != nullptr) watch->add(process_of(member));
    if (!origin.connections.ranks.empty()) {
      known.ranks.push_back(origin.connections.ranks[static_cast<std::size_t>(each)]);
    }
    if (each == rank) part.rank = static_cast<int>(part.members.size());
    part.members.push_back(member);
    part.members.back().rank = static_cast<int>(part.members.size()) - 1;
  }
  // Hashed, since parts of parts would have names without end.
  const std::string full_name = fmt::format("{}{:016x}", kPartPrefix, hash_of(origin.name + "/" + name));
  try {
    ProcessGroup group = connect_ranks(part, full_name, options, known, deadline);
    if (watch != nullptr) watch->end(deadline);
    return group;
  } catch (const Error& error) {
    throw abandon_parts(origin, watch.get(), error);
  }
}

}  // namespace lockstep
